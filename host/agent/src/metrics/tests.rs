//! Names, labels and buckets.

use super::*;
use std::sync::Arc;

fn lines(metrics: &Metrics, start: &str) -> Vec<String> {
    let mut lines: Vec<String> = metrics
        .render()
        .lines()
        .filter(|line| line.starts_with(start))
        .map(str::to_owned)
        .collect();
    lines.sort();
    lines
}

fn called(metrics: &Metrics, result: CallResult<'_>) {
    metrics.called(Call {
        handler: "udev",
        configuration: "video",
        seconds: 0.3,
        late: 0.03,
        result,
        denied: 2,
    });
}

#[test]
fn names_and_labels_come_out_exactly() {
    let metrics = Metrics::default();
    called(&metrics, CallResult::Discovered);
    called(
        &metrics,
        CallResult::Faulted(&Fault::new(FaultReason::Trap, "x")),
    );
    for line in [
        "# TYPE akri_discovery_response_result counter",
        r#"akri_discovery_response_result{discovery_handler_name="udev",result="Success"} 1"#,
        r#"akri_discovery_response_result{discovery_handler_name="udev",result="Fail"} 1"#,
        "# TYPE akri_discovery_response_time histogram",
        r#"akri_discovery_response_time_bucket{le="0.25",configuration="video"} 0"#,
        r#"akri_discovery_response_time_bucket{le="0.5",configuration="video"} 2"#,
        "# TYPE leafhost_handler_calls_total counter",
        r#"leafhost_handler_calls_total{handler="udev"} 2"#,
        r#"leafhost_handler_faults_total{handler="udev",reason="trap"} 1"#,
        r#"leafhost_handler_call_seconds_count{handler="udev"} 2"#,
        r#"leafhost_handler_late_seconds_bucket{le="0.025",handler="udev"} 0"#,
        r#"leafhost_handler_late_seconds_bucket{le="0.05",handler="udev"} 2"#,
        r#"leafhost_handler_denied_total{handler="udev"} 4"#,
    ] {
        assert_eq!(lines(&metrics, line), [line]);
    }
}

#[test]
fn buckets_are_those_of_akri() {
    let metrics = Metrics::default();
    called(&metrics, CallResult::Discovered);
    let bounds: Vec<String> = metrics
        .render()
        .lines()
        .filter_map(|line| line.strip_prefix("akri_discovery_response_time_bucket{le=\""))
        .filter_map(|rest| Some(rest.split_once('"')?.0.to_owned()))
        .collect();
    assert_eq!(
        bounds,
        [
            "0.25", "0.5", "1.0", "1.5", "2.0", "3.0", "5.0", "10.0", "60.0", "+Inf"
        ]
    );
}

#[test]
fn labels_of_a_configuration_go_with_it() {
    let metrics = Metrics::default();
    called(&metrics, CallResult::Discovered);
    metrics.forget_configuration("video");
    assert!(!metrics.render().contains("video"));
}

#[test]
fn labels_of_a_handler_go_with_it() {
    let metrics = Metrics::default();
    called(&metrics, CallResult::Discovered);
    for reason in FaultReason::VARIANTS {
        called(&metrics, CallResult::Faulted(&Fault::new(*reason, "x")));
    }
    metrics.forget_handler("udev");
    assert!(!metrics.render().contains("udev"));
}

#[test]
fn instances_this_node_sees_are_counted_by_configuration_and_kind() {
    let metrics = Metrics::default();
    let instance = |name: &str, node: &str, shared: bool| {
        let instance: leafhost_core::instance::Instance =
            serde_json::from_value(serde_json::json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance",
                "metadata": {"name": name, "namespace": "default"},
                "spec": {"configurationName": "a", "shared": shared, "nodes": [node]},
            }))
            .unwrap();
        (instance.key(), Arc::new(instance))
    };
    let mut set = InstanceSet::read(
        [
            instance("a-1", "here", true),
            instance("a-2", "here", true),
            instance("a-3", "here", false),
            instance("a-4", "there", false),
        ]
        .into(),
    );
    metrics.count_instances(&set, "here");
    assert_eq!(
        lines(&metrics, "akri_instance_count"),
        [
            r#"akri_instance_count{configuration="a",is_shared="false"} 1"#,
            r#"akri_instance_count{configuration="a",is_shared="true"} 2"#,
        ]
    );
    set.instances.clear();
    metrics.count_instances(&set, "here");
    assert_eq!(lines(&metrics, "akri_instance_count"), [""; 0]);
}
