//! Plans, from an empty store and from any state it may have.

use jiff::Timestamp;
use leafhost_core::attribute::AttributeValue;
use leafhost_core::ports::ConfiguredDiscovery;
use leafhost_core::presence::Absent;
use leafhost_fakes::{configured, configured_as, key};

use super::*;

const NODE: &str = "node-a";

fn local(id: &str) -> Device {
    Device::new(id, false)
}

fn shared(id: &str) -> Device {
    Device::new(id, true)
}

fn seen(device: Device) -> (DeviceKey, DeviceView) {
    let view = DeviceView {
        device: Some(Arc::new(device)),
        missing_since: None,
    };
    (view.device.as_ref().unwrap().key(), view)
}

fn view(
    configured: ConfiguredDiscovery,
    devices: impl IntoIterator<Item = Device>,
) -> ConfigurationDevices {
    ConfigurationDevices {
        configured: Arc::new(configured),
        devices: devices.into_iter().map(seen).collect(),
        absent: Absent::GONE,
    }
}

mod cluster;
mod status;

fn snapshot(views: impl IntoIterator<Item = ConfigurationDevices>) -> DeviceSnapshot {
    DeviceSnapshot {
        read: true,
        boot: None,
        names: Arc::default(),
        absent: Absent::GONE,
        configurations: views
            .into_iter()
            .map(|view| (view.configured.configuration.key.clone(), Arc::new(view)))
            .collect(),
    }
}

fn cams(devices: impl IntoIterator<Item = Device>) -> DeviceSnapshot {
    snapshot([view(configured("cams", "udev", ""), devices)])
}

/// Applies the changes, as a store would.
fn apply(set: &mut InstanceSet, changes: Vec<Change>) {
    for change in changes {
        let key = change.key();
        match change {
            Change::Create(mut instance) => {
                instance.metadata.uid = format!("uid-of-{key}");
                assert!(set.instances.insert(key, Arc::new(*instance)).is_none());
            }
            Change::Update { edits, .. } => {
                let instance = Arc::make_mut(set.instances.get_mut(&key).unwrap());
                for edit in &edits {
                    edit.apply(instance).unwrap();
                }
            }
            Change::Delete { .. } => drop(set.instances.remove(&key).unwrap()),
        }
    }
}

fn planned(snapshot: &DeviceSnapshot, set: &InstanceSet) -> Vec<Change> {
    plan(NODE, snapshot, set, &Reservations::default(), false).changes
}

/// Returns the store after the plan for `snapshot`, and asserts that a second plan is empty.
fn settled(snapshot: &DeviceSnapshot) -> InstanceSet {
    let mut set = InstanceSet::read(BTreeMap::new());
    let changes = planned(snapshot, &set);
    apply(&mut set, changes);
    assert_eq!(planned(snapshot, &set), []);
    set
}

fn on_nodes(set: &mut InstanceSet, nodes: &[&str]) {
    for instance in set.instances.values_mut() {
        Arc::make_mut(instance).spec.nodes = nodes.iter().map(|&node| node.to_owned()).collect();
    }
}

fn names(set: &InstanceSet) -> Vec<&str> {
    set.instances.keys().map(|key| key.name.as_str()).collect()
}

fn only(set: &InstanceSet) -> &Instance {
    assert_eq!(set.instances.len(), 1);
    set.instances.values().next().unwrap()
}

/// Formats each change in short form.
fn shown(changes: &[Change]) -> Vec<String> {
    let edit = |edit: &Edit| match edit {
        Edit::Common { .. } => "common".to_owned(),
        Edit::Labels(_) => "labels".to_owned(),
        Edit::Owner(owner) => format!("owner {}", owner.uid),
        Edit::AddNode(node) => format!("+{node}"),
        Edit::RemoveNode(node) => format!("-{node}"),
        Edit::Status { node, .. } => format!("status of {node}"),
        Edit::Holders { node, .. } => format!("holders of {node}"),
        Edit::Slot { id, new, .. } => format!("{id}={new}"),
    };
    changes
        .iter()
        .map(|change| match change {
            Change::Create(instance) => format!("create {}", instance.metadata.name),
            Change::Update { key, edits, .. } => {
                let edits: Vec<String> = edits.iter().map(edit).collect();
                format!("update {}: {}", key.name, edits.join(", "))
            }
            Change::Delete { key, .. } => format!("delete {}", key.name),
        })
        .collect()
}

#[test]
fn an_instance_is_what_akri_makes_of_a_shared_device() {
    let mut device = shared("foo0");
    device.properties.insert("A".into(), "device".into());
    device.properties.insert("B".into(), "device".into());
    device
        .attributes
        .insert("model".into(), AttributeValue::String("x".into()));
    device.capacity.insert("memory".into(), "80Gi".into());
    device.physical_id = Some("usb-1".into());
    let configured = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": "cams", "namespace": "edge", "uid": "u"},
        "spec": {"discoveryHandler": {"name": "udev"}, "capacity": 2, "brokerProperties": {"B": "configuration"}},
    }));
    let set = settled(&snapshot([view(configured, [device])]));
    assert_eq!(
        serde_json::to_value(only(&set)).unwrap(),
        serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance",
            "metadata": {
                "name": "cams-8120fe", "namespace": "edge", "uid": "uid-of-edge/cams-8120fe",
                "labels": {"leafhost.dev/shared": "true", "leafhost.dev/configuration": "cams"},
                "ownerReferences": [{"apiVersion": "akri.sh/v0", "kind": "Configuration", "name": "cams", "uid": "u", "controller": true}],
            },
            "spec": {
                "configurationName": "cams", "cdiName": "akri.sh/cams=8120fe", "capacity": 2, "shared": true, "nodes": [NODE],
                "brokerProperties": {"A": "device", "B": "configuration"},
                "deviceUsage": {"cams-8120fe-0": "", "cams-8120fe-1": ""},
                "leafhost": {"id": "foo0", "attributes": {"model": {"string": "x"}}, "capacity": {"memory": "80Gi"}, "physicalId": "usb-1"},
            },
            "status": {"nodes": {NODE: {"health": "Healthy"}}},
        })
    );
}

#[test]
fn a_local_device_has_its_node_in_hash_and_label() {
    let set = settled(&cams([local("foo0")]));
    let instance = only(&set);
    let hash = device_hash("foo0", Some(NODE), DigestLength::Three);
    assert_eq!(instance.metadata.name, format!("cams-{hash}"));
    assert_eq!(
        instance.metadata.labels,
        BTreeMap::from([(NODE_LABEL.into(), NODE.into())])
    );
}

#[test]
fn every_difference_is_one_edit_and_nothing_else_is() {
    let before = cams([shared("foo0")]);
    let hot = Device {
        health: Health::Unhealthy("hot".into()),
        ..shared("foo0")
    };
    let named = Device {
        properties: BTreeMap::from([("A".into(), "1".into())]),
        ..shared("foo0")
    };
    let known = Device {
        physical_id: Some("x".into()),
        ..shared("foo0")
    };
    let mut more = configured("cams", "udev", "");
    more.configuration.capacity = 5;
    let mut missing = view(configured("cams", "udev", ""), [shared("foo0")]);
    missing
        .devices
        .values_mut()
        .for_each(|view| view.missing_since = Some(Timestamp::UNIX_EPOCH));
    let mut unseen = missing.clone();
    unseen
        .devices
        .values_mut()
        .for_each(|view| view.device = None);
    let mut waiting = unseen.clone();
    waiting
        .devices
        .values_mut()
        .for_each(|view| view.missing_since = None);
    for (what, after, expected) in [
        ("nothing", before.clone(), None),
        (
            "health",
            cams([hot]),
            Some("update cams-8120fe: status of node-a"),
        ),
        (
            "properties",
            cams([named]),
            Some("update cams-8120fe: common"),
        ),
        (
            "physical id",
            cams([known]),
            Some("update cams-8120fe: common"),
        ),
        (
            "capacity",
            snapshot([view(more, [shared("foo0")])]),
            Some("update cams-8120fe: common"),
        ),
        (
            "missing",
            snapshot([missing]),
            Some("update cams-8120fe: status of node-a"),
        ),
        (
            "missing since before the start",
            snapshot([unseen]),
            Some("update cams-8120fe: status of node-a"),
        ),
        ("not seen since the start", snapshot([waiting]), None),
        ("gone", cams([]), Some("delete cams-8120fe")),
    ] {
        let mut set = settled(&before);
        let changes = planned(&after, &set);
        assert_eq!(
            shown(&changes),
            expected.into_iter().collect::<Vec<_>>(),
            "{what}"
        );
        let (usage, uid) = (
            only(&set).spec.device_usage.clone(),
            only(&set).metadata.uid.clone(),
        );
        apply(&mut set, changes);
        assert_eq!(planned(&after, &set), [], "{what}, a second time");
        if let Some(instance) = set.instances.values().next() {
            assert_eq!(
                (&instance.spec.device_usage, &instance.metadata.uid),
                (&usage, &uid),
                "{what}"
            );
        }
    }
}

#[test]
fn health_of_a_missing_device_is_the_last_known_one() {
    let hot = Device {
        health: Health::Unhealthy("hot".into()),
        ..shared("foo0")
    };
    let mut set = settled(&cams([hot]));
    let mut unseen = view(configured("cams", "udev", ""), [shared("foo0")]);
    for view in unseen.devices.values_mut() {
        *view = DeviceView {
            device: None,
            missing_since: Some(Timestamp::UNIX_EPOCH),
        };
    }
    let changes = planned(&snapshot([unseen]), &set);
    apply(&mut set, changes);
    let status = &only(&set).status.nodes[NODE];
    assert_eq!(status.health, Health::Unhealthy("hot".into()));
    assert_eq!(
        status.missing_since.as_deref(),
        Some("1970-01-01T00:00:00Z")
    );
}

#[test]
fn nothing_known_is_not_written() {
    let mut set = settled(&cams([shared("foo0")]));
    for instance in set.instances.values_mut() {
        Arc::make_mut(instance).status.nodes.clear();
    }
    let mut unseen = view(configured("cams", "udev", ""), [shared("foo0")]);
    for view in unseen.devices.values_mut() {
        view.device = None;
    }
    assert_eq!(planned(&snapshot([unseen]), &set), []);
}

#[test]
fn a_foreign_instance_causes_nothing() {
    let mut set = settled(&cams([local("foo0"), local("foo1")]));
    on_nodes(&mut set, &["node-b"]);
    for instance in set.instances.values_mut() {
        let labels = &mut Arc::make_mut(instance).metadata.labels;
        labels.insert(NODE_LABEL.into(), "node-b".into());
    }
    assert_eq!(planned(&cams([]), &set), []);
    assert_eq!(planned(&snapshot([]), &set), []);
}

#[test]
fn configurations_that_are_not_there_count_as_deleted_only_when_all_have_been_read() {
    let set = settled(&cams([local("foo0")]));
    let deleted = snapshot([]);
    let unread = DeviceSnapshot {
        absent: Absent::UNKNOWN,
        ..snapshot([])
    };
    let unusable = DeviceSnapshot {
        absent: Absent::Gone {
            unknown: BTreeSet::from([key("cams")]),
        },
        ..snapshot([])
    };
    assert_eq!(planned(&deleted, &set).len(), 1);
    assert_eq!(planned(&unread, &set), []);
    assert_eq!(planned(&unusable, &set), []);
}

#[test]
fn an_instance_that_akri_made_is_taken_over_by_its_name() {
    let mut set = settled(&cams([shared("foo0"), shared("foo1")]));
    for instance in set.instances.values_mut() {
        Arc::make_mut(instance).spec.leafhost = None;
    }
    let mut some = view(configured("cams", "udev", ""), [shared("foo0")]);
    some.absent = Absent::UNKNOWN;
    let changes = planned(&snapshot([some]), &set);
    assert_eq!(
        shown(&changes),
        ["update cams-8120fe: common"],
        "foo1 may still be found"
    );
    let whole = view(configured("cams", "udev", ""), [shared("foo0")]);
    let changes = planned(&snapshot([whole]), &set);
    assert_eq!(
        shown(&changes),
        ["update cams-8120fe: common", "delete cams-a19705"]
    );
}

/// Returns two ids whose three-byte hashes are equal.
fn colliding() -> (String, String) {
    let mut seen = BTreeMap::new();
    for n in 0.. {
        let id = format!("device-{n}");
        if let Some(other) = seen.insert(device_hash(&id, None, DigestLength::Three), id.clone()) {
            let mut pair = [id, other];
            pair.sort();
            let [first, second] = pair;
            return (first, second);
        }
    }
    unreachable!()
}

#[test]
fn of_two_devices_that_collide_the_first_id_has_the_short_name() {
    let (first, second) = colliding();
    let short = |id: &str| instance_name("cams", &device_hash(id, None, DigestLength::Three));
    let long = |id: &str| instance_name("cams", &device_hash(id, None, DigestLength::Five));
    let both = settled(&cams([shared(&second), shared(&first)]));
    let of = |set: &InstanceSet, id: &str| {
        let mut all = set.instances.values();
        all.find(|instance| instance.device_id() == Some(id))
            .unwrap()
            .metadata
            .name
            .clone()
    };
    assert_eq!(
        (of(&both, &first), of(&both, &second)),
        (short(&first), long(&second))
    );

    let mut set = settled(&cams([shared(&second)]));
    assert_eq!(of(&set, &second), short(&second));
    let changes = planned(&cams([shared(&second), shared(&first)]), &set);
    apply(&mut set, changes);
    assert_eq!(
        of(&set, &second),
        short(&second),
        "an Instance keeps its name"
    );
    assert_eq!(of(&set, &first), long(&first));
    let changes = planned(&cams([shared(&first)]), &set);
    apply(&mut set, changes);
    assert_eq!(names(&set), [long(&first)], "also when the other one goes");
}

#[test]
fn ten_thousand_devices_all_have_an_instance_and_few_a_long_name() {
    let devices = (0..10_000).map(|n| shared(&format!("device-{n}")));
    let snapshot = cams(devices);
    let set = settled(&snapshot);
    assert_eq!(set.instances.len(), 10_000);
    let long = set
        .instances
        .keys()
        .filter(|key| key.name.len() > "cams-8120fe".len())
        .count();
    assert!((1..15).contains(&long), "{long}");
}

#[test]
fn of_two_instances_of_one_device_the_first_stays() {
    let long = instance_name("cams", &device_hash("foo0", None, DigestLength::Five));
    for (seconds, later) in [(1, long.as_str()), (9, "cams-8120fe")] {
        let mut set = settled(&cams([shared("foo0")]));
        let mut twin = only(&set).clone();
        for instance in set.instances.values_mut() {
            let created = format!("2026-01-01T00:00:0{seconds}Z");
            Arc::make_mut(instance).metadata.creation_timestamp = Some(created);
        }
        twin.metadata.name.clone_from(&long);
        twin.metadata.creation_timestamp = Some("2026-01-01T00:00:05Z".into());
        set.instances.insert(twin.key(), Arc::new(twin));
        let changes = planned(&cams([shared("foo0")]), &set);
        assert_eq!(shown(&changes), [format!("delete {later}")]);
    }
}

#[test]
fn an_instance_whose_name_does_not_stand_for_its_device_takes_nothing_from_the_one_that_does() {
    let mut set = settled(&cams([shared("foo0")]));
    let mut other = only(&set).clone();
    other.metadata.name = "cams-000000".into();
    other.spec.nodes = vec!["node-b".into()];
    set.instances.insert(other.key(), Arc::new(other));
    assert_eq!(planned(&cams([shared("foo0")]), &set), []);
    // An Instance with the name and another id is not its own.
    for instance in set.instances.values_mut() {
        let spec = &mut Arc::make_mut(instance).spec;
        spec.nodes.push("node-c".into());
        spec.leafhost.as_mut().unwrap().id = "other".into();
    }
    let long = instance_name("cams", &device_hash("foo0", None, DigestLength::Five));
    let changes = planned(&cams([shared("foo0")]), &set);
    let expected = [
        format!("create {long}"),
        "update cams-8120fe: -node-a".into(),
    ];
    assert_eq!(shown(&changes), expected);
}

#[test]
fn a_name_that_another_node_has_is_evaded() {
    let hash = |length| device_hash("foo0", Some(NODE), length);
    let taken = InstanceKey::new("default", instance_name("cams", &hash(DigestLength::Three)));
    let changes = plan(
        NODE,
        &cams([local("foo0")]),
        &InstanceSet::read(BTreeMap::new()),
        &Reservations {
            taken: BTreeSet::from([taken]),
            ..Reservations::default()
        },
        false,
    )
    .changes;
    assert_eq!(
        shown(&changes),
        [format!("create cams-{}", hash(DigestLength::Five))]
    );
}

#[test]
fn a_device_for_which_no_name_is_left_is_told() {
    let name = |length| instance_name("cams", &device_hash("foo0", None, length));
    let taken = DigestLength::ALL.map(|length| InstanceKey::new("default", name(length)));
    let reservations = Reservations {
        taken: taken.into(),
        ..Reservations::default()
    };
    let snapshot = cams([shared("foo0"), shared("foo1")]);
    let Plan { changes, problems } = plan(
        NODE,
        &snapshot,
        &InstanceSet::read(BTreeMap::new()),
        &reservations,
        false,
    );
    assert_eq!(changes.len(), 1);
    let expected = Problem::NoFreeName {
        configuration: key("cams"),
        devices: 1,
        example: "foo0".into(),
        name: name(DigestLength::Three),
    };
    assert_eq!(problems, [expected]);
}

#[test]
fn configurations_of_one_name_in_two_namespaces_do_not_meet() {
    let edge = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": "edge"},
        "spec": {"discoveryHandler": {"name": "udev"}},
    }));
    let both = snapshot([
        view(configured("cams", "udev", ""), [shared("foo0")]),
        view(edge.clone(), [shared("foo0")]),
    ]);
    let set = settled(&both);
    assert_eq!(set.instances.len(), 2);
    let one = snapshot([view(edge, [shared("foo0")])]);
    let changes = planned(&one, &set);
    assert_eq!(changes.len(), 1);
    assert_eq!(changes[0].key().namespace, "default");
}

#[test]
fn an_instance_of_an_unsettled_configuration_is_kept_although_nobody_has_reported_its_device() {
    let set = settled(&cams([shared("foo0")]));
    let mut open = view(configured("cams", "udev", ""), []);
    open.absent = Absent::UNKNOWN;
    assert_eq!(planned(&snapshot([open]), &set), []);
    let mut departed = view(configured("cams", "udev", ""), []);
    departed.absent = Absent::Unknown {
        gone: BTreeSet::from([shared("foo0").key()]),
    };
    assert_eq!(planned(&snapshot([departed]), &set).len(), 1);
}

#[test]
fn a_store_that_has_not_been_read_is_not_written() {
    let mut set = settled(&cams([shared("foo0")]));
    set.complete = false;
    for snapshot in [cams([]), cams([shared("foo1")]), snapshot([])] {
        assert_eq!(planned(&snapshot, &set), []);
    }
}

#[test]
fn held_slots_of_an_instance_are_not_those_of_its_namesake() {
    let edge = configured_as(serde_json::json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": "edge"},
        "spec": {"discoveryHandler": {"name": "udev"}, "capacity": 2},
    }));
    let both = snapshot([
        view(configured("cams", "udev", ""), [shared("foo0")]),
        view(edge, [shared("foo0")]),
    ]);
    let key = InstanceKey::new("default", "cams-8120fe");
    let usage = leafhost_core::slot::DeviceUsage::Node(NODE.into());
    let slots = BTreeMap::from([("cams-8120fe-0".to_owned(), usage)]);
    let held = HeldSlots::from([(key, slots)]);
    let reservations = Reservations {
        held: Arc::new(held),
        ..Reservations::default()
    };
    let changes = plan(
        NODE,
        &both,
        &InstanceSet::read(BTreeMap::new()),
        &reservations,
        false,
    )
    .changes;
    let usage: Vec<_> = changes
        .iter()
        .map(|change| match change {
            Change::Create(instance) => (
                instance.metadata.namespace.as_str(),
                instance.spec.device_usage["cams-8120fe-0"].as_str(),
            ),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(usage, [("default", NODE), ("edge", "")]);
}
