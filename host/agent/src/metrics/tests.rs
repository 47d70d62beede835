//! Names and labels.

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
