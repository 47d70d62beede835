//! Plans of a node in a cluster: other nodes write the same Instances, and know other generations of their Configuration.

use super::*;

#[test]
fn a_shared_instance_is_left_by_one_node_and_deleted_by_the_last() {
    for (nodes, expected) in [
        (&["node-b", NODE][..], Some("update cams-8120fe: -node-a")),
        (&[NODE], Some("delete cams-8120fe")),
        (&["node-b"], None),
    ] {
        let mut set = settled(&cams([shared("foo0")]));
        on_nodes(&mut set, nodes);
        for gone in [cams([]), snapshot([])] {
            assert_eq!(
                shown(&planned(&gone, &set)),
                expected.into_iter().collect::<Vec<_>>(),
                "{nodes:?}"
            );
        }
    }
}

#[test]
fn a_node_that_sees_another_nodes_instance_joins_it() {
    let mut set = settled(&cams([shared("foo0")]));
    on_nodes(&mut set, &["node-b"]);
    Arc::make_mut(set.instances.values_mut().next().unwrap())
        .status
        .nodes
        .clear();
    let mut device = shared("foo0");
    device.properties.insert("SEEN_FROM".into(), NODE.into());
    let changes = planned(&cams([device.clone()]), &set);
    assert_eq!(
        shown(&changes),
        ["update cams-8120fe: +node-a, status of node-a"]
    );
    apply(&mut set, changes);
    assert_eq!(
        planned(&cams([device]), &set),
        [],
        "its own view of the properties is not a difference"
    );
}

/// Returns the Configuration `cams` of a cluster at a generation.
fn at(generation: i64, properties: &serde_json::Value) -> ConfiguredDiscovery {
    configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": "cams", "uid": "uid-of-cams", "generation": generation},
        "spec": {"discoveryHandler": {"name": "udev"}, "capacity": 2, "brokerProperties": properties},
    }))
}

fn cams_at(generation: i64, properties: &serde_json::Value) -> DeviceSnapshot {
    snapshot([view(at(generation, properties), [shared("foo0")])])
}

#[test]
fn what_a_newer_generation_wrote_is_left_by_nodes_that_know_an_older_one() {
    let (old, new) = (
        serde_json::json!({"MODE": "slow"}),
        serde_json::json!({"MODE": "fast"}),
    );
    let mut set = settled(&cams_at(1, &old));
    on_nodes(&mut set, &["node-b", NODE]);
    let changes = planned(&cams_at(2, &new), &set);
    assert_eq!(shown(&changes), ["update cams-8120fe: common"]);
    apply(&mut set, changes);
    assert_eq!(only(&set).generation(), Some(2));
    assert_eq!(planned(&cams_at(1, &old), &set), []);
    assert_eq!(planned(&cams_at(2, &new), &set), []);
}

#[test]
fn a_property_that_a_newer_generation_has_not_leaves_although_other_nodes_see_the_device() {
    let mut set = settled(&cams_at(1, &serde_json::json!({"A": "1", "B": "2"})));
    on_nodes(&mut set, &["node-b", NODE]);
    let newer = cams_at(2, &serde_json::json!({"A": "1"}));
    let changes = planned(&newer, &set);
    apply(&mut set, changes);
    let properties = &only(&set).spec.broker_properties;
    assert_eq!(properties.keys().collect::<Vec<_>>(), ["A"]);
    assert_eq!(planned(&newer, &set), []);
}

#[test]
fn a_generation_that_says_the_same_is_no_difference() {
    let same = serde_json::json!({"A": "1"});
    let set = settled(&cams_at(1, &same));
    assert_eq!(planned(&cams_at(7, &same), &set), []);
}

#[test]
fn of_two_nodes_at_one_generation_neither_writes_its_own_view_of_the_properties() {
    let none = serde_json::json!({});
    let mut set = settled(&cams_at(1, &none));
    on_nodes(&mut set, &["node-b", NODE]);
    let mut device = shared("foo0");
    device.properties.insert("SEEN_FROM".into(), NODE.into());
    let own = |generation| snapshot([view(at(generation, &none), [device.clone()])]);
    assert_eq!(planned(&own(1), &set), []);
    // A newer generation is written once, by the first node.
    let changes = planned(&own(2), &set);
    apply(&mut set, changes);
    assert_eq!(planned(&cams_at(2, &none), &set), []);
}

#[test]
fn what_the_only_node_sees_of_a_device_is_written_within_a_generation() {
    let none = serde_json::json!({});
    let set = settled(&cams_at(1, &none));
    let known = Device {
        physical_id: Some("x".into()),
        ..shared("foo0")
    };
    let changes = planned(&snapshot([view(at(1, &none), [known])]), &set);
    assert_eq!(shown(&changes), ["update cams-8120fe: common"]);
}

#[test]
fn a_configuration_that_is_being_deleted_creates_nothing() {
    let mut deleting = at(1, &serde_json::json!({}));
    deleting.configuration.deleting = true;
    let snapshot = snapshot([view(deleting, [shared("foo0")])]);
    assert_eq!(planned(&snapshot, &InstanceSet::read(BTreeMap::new())), []);
}

#[test]
fn instances_of_a_deleted_configuration_are_left_to_a_store_that_collects_them() {
    let set = settled(&cams([shared("foo0")]));
    let none = Reservations::default();
    let gone = snapshot([]);
    assert_eq!(plan(NODE, &gone, &set, &none, true).changes, []);
    assert_eq!(plan(NODE, &gone, &set, &none, false).changes.len(), 1);
}

#[test]
fn instances_get_the_configuration_that_was_created_again_as_owner_with_all_that_it_says() {
    let set = settled(&cams_at(1, &serde_json::json!({})));
    let mut again = at(1, &serde_json::json!({}));
    again.configuration.uid = "another".into();
    let seen = view(again, [shared("foo0")]);
    let mut unseen = seen.clone();
    for view in unseen.devices.values_mut() {
        view.device = None;
    }
    assert_eq!(planned(&snapshot([unseen]), &set), []);
    let changes = planned(&snapshot([seen]), &set);
    assert_eq!(
        shown(&changes),
        ["update cams-8120fe: owner another, common"]
    );
}

#[test]
fn instances_of_a_configuration_that_was_created_again_begin_with_its_first_generation() {
    let properties = |mode: &str| serde_json::json!({"MODE": mode});
    let again = |generation, mode| {
        let mut again = at(generation, &properties(mode));
        again.configuration.uid = "another".into();
        snapshot([view(again, [shared("foo0")])])
    };
    let edited = settled(&cams_at(7, &properties("fast")));
    let mut orphan = edited.clone();
    for instance in orphan.instances.values_mut() {
        Arc::make_mut(instance).metadata.owner_references.clear();
    }
    for mut set in [edited, orphan] {
        on_nodes(&mut set, &["node-b", NODE]);
        let changes = planned(&again(1, "fast"), &set);
        assert_eq!(
            shown(&changes),
            ["update cams-8120fe: owner another, common"]
        );
        apply(&mut set, changes);
        assert_eq!(only(&set).generation(), Some(1));
        assert_eq!(planned(&again(1, "fast"), &set), []);
        let changes = planned(&again(2, "slow"), &set);
        assert_eq!(shown(&changes), ["update cams-8120fe: common"]);
    }
}

/// Covers `kubectl delete --cascade=orphan`, which removes the owner while the Configuration still exists.
#[test]
fn a_configuration_that_is_being_deleted_does_not_become_owner_again() {
    let mut set = settled(&cams_at(1, &serde_json::json!({})));
    for instance in set.instances.values_mut() {
        Arc::make_mut(instance).metadata.owner_references.clear();
    }
    let mut deleting = at(1, &serde_json::json!({}));
    deleting.configuration.deleting = true;
    let snapshot = snapshot([view(deleting, [shared("foo0")])]);
    assert_eq!(planned(&snapshot, &set), []);
}

#[test]
fn a_label_that_somebody_removed_comes_back() {
    let snapshot = cams([shared("foo0")]);
    let mut set = settled(&snapshot);
    let before = set.clone();
    let instance = Arc::make_mut(set.instances.values_mut().next().unwrap());
    instance.metadata.labels.clear();
    let changes = planned(&snapshot, &set);
    assert_eq!(shown(&changes), ["update cams-8120fe: labels"]);
    apply(&mut set, changes);
    assert_eq!(set, before);
}
