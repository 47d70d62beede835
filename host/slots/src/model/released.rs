//! Edits that release a slot. Pure.

use std::collections::BTreeMap;

use leafhost_core::allocation::give_back;
use leafhost_core::instance::{Edit, Instance};
use leafhost_core::slot::DeviceUsage;

/// Returns the edits that release a slot of this node and remove its holder. Only if the Instance has one slot: the holders need the version that was
/// read, and the slots of an Instance are often released at once.
pub fn edits(node: &str, instance: &Instance, slot: &str, usage: &DeviceUsage) -> Vec<Edit> {
    let released = give_back(slot, usage);
    if instance.spec.capacity != 1 || !instance.status.nodes.contains_key(node) {
        return vec![released];
    }
    let removed = Edit::Holders {
        node: node.to_owned(),
        holders: BTreeMap::new(),
    };
    vec![released, removed]
}
