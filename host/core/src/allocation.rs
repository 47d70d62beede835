//! Edits of Instances that take and release slots by compare-and-swap, for device plugins and resource claims alike.

use std::collections::BTreeMap;

use crate::instance::{Edit, Instance, Reserved};
use crate::slot::DeviceUsage;

/// Returns the edits that take a free slot for `usage`. They add the node to `spec.nodes` if the Instance of a shared
/// device lacks it, because only a listed node may take a slot.
pub fn take(instance: &Instance, slot: &str, usage: &DeviceUsage) -> Vec<Edit> {
    let lacks = |node: &&str| instance.spec.shared && !instance.is_seen_by(node);
    let joins = usage.node().filter(lacks);
    let joins = joins.map(|node| Edit::AddNode(node.to_owned()));
    let takes = Edit::Slot {
        id: slot.to_owned(),
        held: DeviceUsage::Unused,
        new: usage.clone(),
        reserved: None,
    };
    joins.into_iter().chain([takes]).collect()
}

/// Returns the edit that assigns a free slot to the pod that a scheduler has chosen it for.
pub fn reserve(slot: &str, usage: DeviceUsage, reserved: Reserved) -> Edit {
    Edit::Slot {
        id: slot.to_owned(),
        held: DeviceUsage::Unused,
        new: usage,
        reserved: Some(reserved),
    }
}

/// Returns the edit that releases a slot if `usage` still holds it.
pub fn give_back(slot: &str, usage: &DeviceUsage) -> Edit {
    Edit::Slot {
        id: slot.to_owned(),
        held: usage.clone(),
        new: DeviceUsage::Unused,
        reserved: None,
    }
}

/// Returns the edits that release a slot of a node, like [`give_back`]. They remove its holder, too, if the Instance has
/// one slot: an edit of holders needs the version that was read, and several slots of an Instance are often released at
/// once.
pub fn release(node: &str, instance: &Instance, slot: &str, usage: &DeviceUsage) -> Vec<Edit> {
    let released = give_back(slot, usage);
    // After the capacity was lowered, another pod may have a slot beyond it.
    let is_alone = instance.status.nodes.get(node).is_some_and(|entry| {
        let mut holders = entry.holders.keys();
        holders.all(|held| held == slot)
    });
    if instance.spec.capacity != 1 || !is_alone {
        return vec![released];
    }
    let removed = Edit::Holders {
        node: node.to_owned(),
        holders: BTreeMap::new(),
    };
    vec![released, removed]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_the_holder_of_the_released_slot_is_removed() {
        let of = |capacity: u32, holders: &[&str]| {
            let holders: BTreeMap<&str, &str> = holders.iter().map(|slot| (*slot, "a/p")).collect();
            let instance: Instance = serde_json::from_value(json!({
                "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "a-1", "namespace": "a"},
                "spec": {"configurationName": "a", "capacity": capacity, "nodes": ["n"], "deviceUsage": {"a-1-0": "n", "a-1-1": "n"}},
                "status": {"nodes": {"n": {"health": "Healthy", "holders": holders}}},
            }))
            .unwrap();
            release("n", &instance, "a-1-0", &DeviceUsage::Node("n".to_owned())).len()
        };
        assert_eq!(of(1, &["a-1-0"]), 2);
        assert_eq!(of(1, &["a-1-0", "a-1-1"]), 1);
        assert_eq!(of(2, &["a-1-0"]), 1);
    }
}
