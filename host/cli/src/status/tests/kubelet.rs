//! Tests of the kubelet's part of `leafhost status`.

use leafhost_agent::status::{KubeletView, RefusedView, ResourceView, SlotView};

use super::*;

fn mk_resource(name: &str, state: &str, problem: Option<&str>) -> ResourceView {
    ResourceView {
        name: format!("akri.sh/{name}"),
        socket: format!("leafhost-{name}.sock"),
        state: state.into(),
        registrations: 1,
        problem: problem.map(str::to_owned),
        refused: None,
    }
}

fn mk_slot(slot: &str, resource: &str, device: &str, holder: Option<&str>) -> SlotView {
    SlotView {
        slot: slot.into(),
        resource: format!("akri.sh/{resource}"),
        device: device.into(),
        holder: holder.map(str::to_owned),
    }
}

fn mk_kubelet() -> KubeletView {
    KubeletView {
        dir: "/var/lib/kubelet".into(),
        present: true,
        resources: vec![
            mk_resource("cams", "listed", None),
            mk_resource("cams-8120fe", "listed", None),
        ],
        ..KubeletView::default()
    }
}

fn mk_status_with(kubelet: KubeletView) -> Status {
    Status {
        kubelet: Some(kubelet),
        ..mk_status()
    }
}

fn shown(view: Option<View>, name: Option<&str>, status: &Status) -> String {
    request(view, name, Output::Table)
        .render(status, now())
        .unwrap()
}

/// Returns the kubelet's line and the problems below it.
fn head(kubelet: KubeletView) -> Vec<String> {
    let text = shown(None, None, &mk_status_with(kubelet));
    let lines = text.lines().skip(2).take_while(|line| !line.is_empty());
    lines
        .filter(|line| !line.contains("no udev"))
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_overview_says_how_it_goes_with_the_kubelet() {
    let of = |change: fn(&mut KubeletView)| {
        let mut kubelet = mk_kubelet();
        change(&mut kubelet);
        head(kubelet)
    };
    for (found, expected) in [
        (
            of(|_| {}),
            vec!["kubelet: /var/lib/kubelet, 2 resources, all listed"],
        ),
        (
            of(|kubelet| kubelet.resources.clear()),
            vec!["kubelet: /var/lib/kubelet, nothing to offer"],
        ),
        (
            of(|kubelet| kubelet.resources.truncate(1)),
            vec!["kubelet: /var/lib/kubelet, 1 resource, listed"],
        ),
        (
            of(|kubelet| {
                kubelet.resources[1] = mk_resource("cams-8120fe", "failed", Some("it says no"));
            }),
            vec![
                "kubelet: /var/lib/kubelet, 2 resources, 1 of them listed, 1 failed",
                "! akri.sh/cams-8120fe: it says no",
            ],
        ),
        (
            of(|kubelet| {
                kubelet.present = false;
                kubelet.problems = vec![problem("no kubelet here: the folder is missing")];
            }),
            vec![
                "kubelet: none at /var/lib/kubelet; the agent offers devices as soon as one runs there (another folder: --kubelet-dir)",
            ],
        ),
        (
            of(|kubelet| {
                kubelet.present = false;
                kubelet.socket_missing = true;
                kubelet.problems = vec![problem("kubelet.sock is missing: restart it")];
            }),
            vec![
                "kubelet: /var/lib/kubelet, running without its registration socket",
                "! kubelet.sock is missing: restart it",
            ],
        ),
        (
            of(|kubelet| {
                kubelet.present = false;
                kubelet.resources.clear();
                kubelet.problems = vec![problem("cannot look at it: run as root")];
            }),
            vec![
                "kubelet: none at /var/lib/kubelet; the agent offers devices as soon as one runs there (another folder: --kubelet-dir)",
                "! cannot look at it: run as root",
            ],
        ),
    ] {
        assert_eq!(found, expected);
    }
}

#[test]
fn slots_are_counted_where_pods_may_have_them() {
    let slots = |status: &Status| {
        let text = shown(Some(View::Instances), None, status);
        let row = text.lines().nth(2).unwrap();
        row.contains("  0/2  ")
    };
    let mut status = mk_status_with(mk_kubelet());
    assert!(slots(&status));
    status.kubelet.as_mut().unwrap().present = false;
    assert!(!slots(&status));
    status.mode = "cluster".into();
    assert!(slots(&status));
    assert!(!slots(&mk_status()));
}

#[test]
fn of_many_resources_in_trouble_the_overview_names_some() {
    let kubelet = |count: usize| {
        let resources = (0..count)
            .map(|number| mk_resource(&format!("cams-{number}"), "failed", Some("no room")));
        head(KubeletView {
            resources: resources.collect(),
            ..mk_kubelet()
        })
    };
    assert_eq!(kubelet(3).len(), 1 + 3);
    let four = kubelet(4);
    assert_eq!(four.len(), 1 + 3 + 1);
    assert_eq!(
        four[4],
        "! 1 more resource has a problem: leafhost status resources"
    );
    assert!(kubelet(50)[4].starts_with("! 47 more resources have problems"));
}

#[test]
fn resources_are_shown_with_how_far_they_are() {
    let mut kubelet = mk_kubelet();
    kubelet.resources[1] = mk_resource("cams-8120fe", "failed", Some("it says no"));
    let status = mk_status_with(kubelet);
    assert_eq!(
        shown(Some(View::Resources), None, &status),
        "\
RESOURCE             STATE   REGISTRATIONS  SOCKET                     PROBLEM
akri.sh/cams         listed  1              leafhost-cams.sock         -
akri.sh/cams-8120fe  failed  1              leafhost-cams-8120fe.sock  it says no
"
    );
    let text = request(Some(View::Resources), None, Output::Json)
        .render(&status, now())
        .unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(list[1]["problem"], "it says no");
}

#[test]
fn without_resources_it_is_said_why_there_are_none() {
    let text = shown(Some(View::Resources), None, &mk_status());
    assert!(text.contains("--kubelet-dir"), "{text}");
    let mut kubelet = mk_kubelet();
    kubelet.resources.clear();
    let text = shown(Some(View::Resources), None, &mk_status_with(kubelet));
    assert!(text.contains("no Instance"), "{text}");
}

#[test]
fn slots_name_the_pod_and_the_device_it_asked_for() {
    let mut kubelet = mk_kubelet();
    kubelet.slots = vec![
        mk_slot("cams-8120fe-0", "cams-8120fe", "cams-8120fe-0", None),
        mk_slot("cams-a19705-1", "cams", "cams-4", Some("lab/viewer")),
        mk_slot("cams-ffffff-0", "cams", "cams-7", Some("lab/old")),
    ];
    let mut status = mk_status_with(kubelet);
    status.instances.pop();
    let usage = [
        ("cams-a19705-0", "C:3:edge-2"),
        ("cams-a19705-1", "C:cams-4:edge-1"),
        ("cams-a19705-5", "C:nonsense"),
    ];
    status.instances[1].spec.device_usage = usage
        .map(|(slot, holder)| (slot.to_owned(), holder.to_owned()))
        .into();
    assert_eq!(
        shown(Some(View::Slots), None, &status),
        "\
INSTANCE                 SLOT           HELD-BY     THROUGH              DEVICE         POD
cams-8120fe              cams-8120fe-0  edge-1      akri.sh/cams-8120fe  cams-8120fe-0  none seen
cams-8120fe              cams-8120fe-1  free        -                    -              -
cams-a19705              cams-a19705-0  edge-2      akri.sh/cams         cams-3         -
cams-a19705              cams-a19705-1  edge-1      akri.sh/cams         cams-4         lab/viewer
cams-a19705              cams-a19705-5  C:nonsense  -                    -              -
cams-ffffff (withdrawn)  cams-ffffff-0  edge-1      akri.sh/cams         cams-7         lab/old
"
    );
    let text = request(Some(View::Slots), None, Output::Json)
        .render(&status, now())
        .unwrap();
    let list: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(
        list[3],
        json!({"instance": "cams-a19705", "id": "cams-a19705-1", "node": "edge-1", "resource": "akri.sh/cams",
            "device": "cams-4", "holder": "lab/viewer"})
    );
    assert_eq!(list[5]["withdrawn"], true);
}

#[test]
fn a_configuration_says_what_a_pod_asks_for() {
    let lines = |kubelet: KubeletView| {
        let text = shown(
            Some(View::Configuration),
            Some("cams"),
            &mk_status_with(kubelet),
        );
        let from = text
            .lines()
            .skip_while(|line| !line.starts_with("In a pod"));
        let section = from.take_while(|line| !line.is_empty());
        section.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(
        lines(mk_kubelet()),
        [
            "In a pod's container: any device, or a particular one",
            "  resources: {limits: {akri.sh/cams: 1}}",
            "  resources: {limits: {akri.sh/cams-8120fe: 1}}",
        ]
    );
    let mut failed = mk_kubelet();
    failed.resources = vec![mk_resource("cams", "failed", Some("it says no"))];
    assert_eq!(
        lines(failed)[1..],
        ["  resources: {limits: {akri.sh/cams: 1}}   # failed: leafhost status resources"]
    );
    for change in [
        (|kubelet| kubelet.present = false) as fn(&mut KubeletView),
        |kubelet| kubelet.resources.clear(),
    ] {
        let mut kubelet = mk_kubelet();
        change(&mut kubelet);
        assert_eq!(lines(kubelet), [""; 0]);
    }
}

#[test]
fn what_was_refused_is_told_of_its_resource() {
    let mut kubelet = mk_kubelet();
    let mut refused = RefusedView {
        count: 1,
        last: "2026-01-01T00:00:00Z".into(),
        reason: "it is hot".into(),
    };
    kubelet.resources[0].refused = Some(refused.clone());
    let once = "akri.sh/cams: an allocation was refused at 2026-01-01T00:00:00Z: it is hot";
    assert_eq!(head(kubelet.clone())[1], format!("! {once}"));
    refused.count = 3;
    kubelet.resources[0].refused = Some(refused);
    let thrice = "3 allocations in a row were refused, the last at 2026-01-01T00:00:00Z: it is hot";
    let table = shown(Some(View::Resources), None, &mk_status_with(kubelet));
    assert!(table.contains(thrice), "{table}");
}
