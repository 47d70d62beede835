//! Edits of Instances that take and release slots by compare-and-swap, for device plugins and resource claims alike.

use crate::instance::{Edit, Instance, Reserved};
use crate::slot::DeviceUsage;

/// Returns the edits that take a free slot for `usage`. They add the node to the Instance's nodes if a shared device
/// lacks it, because only a listed node may take a slot.
pub fn take(instance: &Instance, slot: &str, usage: &DeviceUsage) -> Vec<Edit> {
    let nodes = &instance.spec.nodes;
    let joins = usage.node().filter(|node| {
        let is_there = nodes.iter().any(|seen| seen == node);
        instance.spec.shared && !is_there
    });
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
