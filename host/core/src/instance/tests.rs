use serde_json::{Value, json};

use super::*;

#[test]
fn an_object_of_akri_0_12_without_newer_fields_is_read() {
    let text = r#"{"apiVersion":"akri.sh/v0","kind":"Instance","metadata":{"name":"a-8120fe","namespace":"default"},
        "spec":{"configurationName":"a","shared":true,"nodes":["n"],"deviceUsage":{"a-8120fe-0":""}}}"#;
    let instance: Instance = serde_json::from_str(text).unwrap();
    assert_eq!(
        (instance.spec.capacity, instance.hash()),
        (1, Some("8120fe"))
    );
}

#[test]
fn health_and_reason_stand_side_by_side_in_the_status() {
    let status = NodeStatus::new(Health::Unhealthy("hot".into()));
    assert_eq!(
        serde_json::to_string(&status).unwrap(),
        r#"{"health":"Unhealthy","reason":"hot"}"#
    );
    let back: NodeStatus = serde_json::from_str(r#"{"health":"Healthy"}"#).unwrap();
    assert_eq!(back.health, Health::Healthy);
}

#[test]
fn a_node_is_added_once_and_takes_its_status_along_when_it_leaves() {
    let text = r#"{"apiVersion":"akri.sh/v0","kind":"Instance","metadata":{"name":"a-1","namespace":"default"},
        "spec":{"configurationName":"a"}}"#;
    let mut instance: Instance = serde_json::from_str(text).unwrap();
    Edit::AddNode("n".into()).apply(&mut instance).unwrap();
    Edit::AddNode("n".into()).apply(&mut instance).unwrap();
    Edit::Status {
        node: "n".into(),
        status: NodeStatus::new(Health::Healthy),
    }
    .apply(&mut instance)
    .unwrap();
    assert_eq!(instance.spec.nodes, ["n"]);
    Edit::RemoveNode("n".into()).apply(&mut instance).unwrap();
    assert!(instance.spec.nodes.is_empty() && instance.status.is_empty());
}

#[test]
fn a_slot_goes_only_from_whom_the_edit_names() {
    let text = r#"{"apiVersion":"akri.sh/v0","kind":"Instance","metadata":{"name":"a-1","namespace":"default"},
        "spec":{"configurationName":"a","capacity":2,"deviceUsage":{"a-1-0":"","a-1-5":"n"}}}"#;
    let instance: Instance = serde_json::from_str(text).unwrap();
    let node = DeviceUsage::Node("n".into());
    let free = DeviceUsage::Unused;
    for (id, held, new, usage) in [
        // An absent key and an empty value both mean free.
        ("a-1-0", &free, &node, Some(Some("n"))),
        ("a-1-1", &free, &node, Some(Some("n"))),
        ("a-1-5", &free, &node, None),
        ("a-1-0", &node, &free, None),
        // Beyond the capacity a free slot is removed.
        ("a-1-5", &node, &free, Some(None)),
    ] {
        let mut edited = instance.clone();
        let (held, new) = (held.clone(), new.clone());
        let done = Edit::Slot {
            id: id.into(),
            held,
            new,
            reserved: None,
        }
        .apply(&mut edited);
        match usage {
            Some(usage) => {
                assert_eq!(done, Ok(()), "{id}");
                let found = edited.spec.device_usage.get(id);
                assert_eq!(found.map(String::as_str), usage, "{id}");
            }
            None => assert!(done.is_err() && edited == instance, "{id}"),
        }
    }
}

/// Returns an Instance in which one field has the given value, as if somebody else had written it.
fn with(pointer: &str, value: Value) -> Instance {
    let mut object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "a-1", "namespace": "default", "annotations": {}},
        "spec": {"configurationName": "a", "cdiName": "x", "capacity": 2, "brokerProperties": {"A": "1"}, "shared": true, "nodes": ["n", "m"],
            "deviceUsage": {"a-1-0": "n"}, "leafhost": {"id": "x", "attributes": {}, "capacity": {"memory": "1Gi"}}},
        "status": {"nodes": {"n": {"health": "Healthy"}, "m": {"health": "Healthy"}}},
    });
    *object.pointer_mut(pointer).unwrap() = value;
    serde_json::from_value(object).unwrap()
}

#[test]
fn an_entry_of_a_node_that_cannot_be_read_is_unknown_and_hides_nothing_else() {
    let right = with("/status/nodes/m", json!({"health": "Healthy"}));
    for entry in [
        json!({"health": "Healthy", "reason": "x"}),
        json!({"health": "Unhealthy"}),
        json!({"health": "Fine"}),
        json!({"health": 1}),
        json!({}),
        json!(null),
        json!("Healthy"),
        json!([{"health": "Healthy"}]),
        json!({"health": "Healthy", "missingUptime": {"boot": "b", "seconds": -1}}),
        json!({"health": "Healthy", "missingUptime": {"boot": "b"}}),
        json!({"health": "Healthy", "missingSince": 5}),
    ] {
        let read = with("/status/nodes/m", entry.clone());
        let mut wanted = right.clone();
        let unreadable = NodeStatus {
            is_unreadable: true,
            ..NodeStatus::new(Health::Unknown)
        };
        wanted.status.nodes.insert("m".into(), unreadable);
        assert_eq!(read, wanted, "{entry}");
        // The owner of the entry must overwrite it with any status.
        let status = NodeStatus::new(Health::Unknown);
        let node = "m".to_owned();
        assert!(!Edit::Status { node, status }.is_made(&read), "{entry}");
    }
}

#[test]
fn a_field_of_the_device_that_cannot_be_read_hides_no_other() {
    let right = with("/spec/capacity", json!(2));
    for (pointer, values) in [
        ("/spec/cdiName", json!([null, 1, {}])),
        (
            "/spec/capacity",
            json!([null, "2", -1, 4_294_967_296_u64, 1e300, {}]),
        ),
        ("/spec/brokerProperties", json!([null, [], {"A": 1}])),
        ("/spec/shared", json!([null, "yes"])),
        ("/spec/nodes", json!([null, {}, [1, "m"]])),
        ("/spec/deviceUsage", json!([null, []])),
        ("/spec/leafhost", json!([null, [], {"id": 1}])),
        (
            "/spec/leafhost/attributes",
            json!([null, [], {"a": {"int": 1.5}}, {"a": {}}, {"a": {"string": "x", "int": 1}}, {"a": 1}]),
        ),
        ("/spec/leafhost/capacity", json!([null, {"memory": 1}])),
        (
            "/metadata/annotations",
            json!([{"leafhost.dev/generation": "two"}]),
        ),
        (
            "/status",
            json!([null, 5, {}, {"nodes": null}, {"nodes": []}]),
        ),
    ] {
        for value in values.as_array().unwrap() {
            let read = with(pointer, value.clone());
            assert_eq!(read.spec.configuration_name, "a");
            if !pointer.starts_with("/spec/deviceUsage") {
                let usage = (&read.spec.device_usage, &right.spec.device_usage);
                assert_eq!(usage.0, usage.1, "{pointer} {value}");
            }
        }
    }
    for (value, capacity) in [
        (json!(4_294_967_296_u64), u32::MAX),
        (json!(1e300), u32::MAX),
        (json!(-5), 0),
        (json!("5"), 0),
    ] {
        assert_eq!(with("/spec/capacity", value).spec.capacity, capacity);
    }
    // A slot with an unreadable value must not look free.
    let usage = with("/spec/deviceUsage", json!({"a-1-0": 7, "a-1-1": null}));
    let usage: Vec<&str> = usage
        .spec
        .device_usage
        .values()
        .map(String::as_str)
        .collect();
    assert_eq!(usage, ["7", ""]);
    let attributes = json!({"a": {"int": 1}, "b": {"int": "one"}});
    let read = with("/spec/leafhost/attributes", attributes).spec.leafhost;
    assert_eq!(read.unwrap().attributes.len(), 1);
}

#[test]
fn what_another_node_does_changes_nothing_of_what_a_node_sees() {
    let mine = with("/spec/capacity", json!(2));
    let mut theirs = mine.clone();
    theirs
        .spec
        .device_usage
        .insert("a-1-1".into(), "C:a-0:m".into());
    theirs.spec.nodes.push("o".into());
    theirs.metadata.resource_version = "9".into();
    theirs.status.nodes.remove("m");
    assert_eq!(mine.seen_from("n"), theirs.seen_from("n"));
    assert_ne!(mine.seen_from("m"), theirs.seen_from("m"));
    for (node, concerns) in [("n", true), ("o", false)] {
        assert_eq!(mine.concerns(node), concerns, "{node}");
    }
    let mut away = theirs;
    away.spec.nodes.clear();
    assert!(away.concerns("m") && !away.concerns("o"));
}
