//! This node's entry in the status of an Instance, and the Instances that belong to this node alone.

use std::time::Duration;

use leafhost_core::clock::Clock;

use super::*;

#[test]
fn the_uptime_of_a_missing_device_is_written_once_for_each_absence() {
    let wall = Timestamp::from_second(1000).unwrap();
    let mut set = settled(&cams([shared("foo0")]));
    for (missing_since, up, uptime) in [
        (950, 100, 50),
        // The wall clock was corrected since.
        (950, 200, 50),
        (960, 200, 160),
    ] {
        let mut missing = view(configured("cams", "udev", ""), [shared("foo0")]);
        for view in missing.devices.values_mut() {
            view.missing_since = Timestamp::from_second(missing_since).ok();
        }
        let clock = Clock::new(wall).booted(7, Duration::from_secs(up));
        let snapshot = DeviceSnapshot {
            boot: clock.boot,
            ..snapshot([missing])
        };
        let changes = planned(&snapshot, &set);
        apply(&mut set, changes);
        let written = only(&set).status.nodes[NODE].missing_uptime.as_ref();
        assert_eq!(written.map(|written| written.seconds), Some(uptime));
        assert_eq!(planned(&snapshot, &set), []);
    }
}

#[test]
fn the_holders_that_another_task_has_written_are_no_difference() {
    let snapshot = cams([shared("foo0")]);
    let mut set = settled(&snapshot);
    let instance = Arc::make_mut(set.instances.values_mut().next().unwrap());
    let status = instance.status.nodes.get_mut(NODE).unwrap();
    let (slot, pod) = ("cams-8120fe-0".to_owned(), "default/p".to_owned());
    status.holders.insert(slot, pod);
    assert_eq!(planned(&snapshot, &set), []);
}

#[test]
fn an_instance_that_no_node_sees_is_local_to_the_node_of_its_label() {
    for (nodes, label, is_local) in [
        (&[NODE][..], "node-b", true),
        (&["node-b"], NODE, false),
        (&[], NODE, true),
        (&[], "node-b", false),
    ] {
        let mut set = settled(&cams([local("foo0")]));
        on_nodes(&mut set, nodes);
        let mut instance = only(&set).clone();
        let labels = &mut instance.metadata.labels;
        labels.insert(NODE_LABEL.into(), label.into());
        assert_eq!(is_local_to(NODE, &instance), is_local, "{nodes:?} {label}");
    }
}
