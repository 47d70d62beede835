use super::*;
use crate::fixture::{device_id, pod, snapshot};

fn seen(pods: &[Pod]) -> Holder {
    Holder::Seen {
        pods: pods.iter().cloned().collect(),
        kubelet_run: None,
        lost: false,
        absence: Absence::default(),
    }
}

#[test]
fn each_reason_has_a_label() {
    let reasons = [
        Reason::GivenBack,
        Reason::PodGone,
        Reason::Unclaimed,
        Reason::Undelivered,
        Reason::Refused,
    ];
    let labels = [
        "given-back",
        "pod-gone",
        "unclaimed",
        "undelivered",
        "refused",
    ];
    assert_eq!(reasons.map(Reason::as_str), labels);
}

#[test]
fn a_holder_runs_while_one_of_its_pods_does_and_is_named_if_all_are() {
    let held = device_id("cams-a", "cams-a-0");
    let snapshot = snapshot(1, &[(&held, "p")]);
    let nameless = Pod {
        name: None,
        ..pod("p")
    };
    for (holder, is_running, is_named) in [
        (Holder::default(), false, false),
        (seen(&[pod("p")]), true, true),
        (seen(&[pod("q")]), false, true),
        (seen(&[pod("p"), pod("q")]), true, true),
        (seen(&[nameless, pod("q")]), true, false),
    ] {
        assert_eq!(holder.is_running(&snapshot), is_running, "{holder:?}");
        assert_eq!(holder.is_named(), is_named, "{holder:?}");
    }
}
