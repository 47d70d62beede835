//! Finds the free slots of an Instance. Does not depend on who wants a slot.

use std::collections::BTreeSet;

use crate::configuration::MAX_CAPACITY;
use crate::instance::Instance;
use crate::slot::{slot_id, slot_number};

/// Returns the free slots of an Instance that may be taken now, without those in `taken`.
///
/// Returns no more than the capacity leaves: used slots above a lowered capacity count until they are released.
pub fn free_slots(instance: &Instance, taken: &BTreeSet<String>) -> Vec<String> {
    let (name, spec) = (&instance.metadata.name, &instance.spec);
    let left = left(instance, taken);
    if left == 0 {
        return Vec::new();
    }
    (0..spec.capacity.min(MAX_CAPACITY))
        .map(|slot| slot_id(name, slot))
        .filter(|id| !is_used(instance, id) && !taken.contains(id))
        .take(left)
        .collect()
}

/// Returns the number of free slots of an Instance, without those in `taken`.
pub fn left(instance: &Instance, taken: &BTreeSet<String>) -> usize {
    let spec = &instance.spec;
    let used = spec.device_usage.values().filter(|usage| !usage.is_empty());
    let also = taken
        .iter()
        .filter(|id| slot_number(&instance.metadata.name, id).is_some() && !is_used(instance, id));
    let capacity = usize::try_from(spec.capacity.min(MAX_CAPACITY)).unwrap_or(usize::MAX);
    capacity.saturating_sub(used.count().saturating_add(also.count()))
}

/// Returns true if the usage of the Instance says that the slot is used.
pub fn is_used(instance: &Instance, slot: &str) -> bool {
    let usage = instance.spec.device_usage.get(slot);
    usage.is_some_and(|usage| !usage.is_empty())
}
