//! Finds the free slots of an Instance. Does not depend on who wants a slot.

use std::collections::BTreeSet;

use crate::configuration::MAX_CAPACITY;
use crate::instance::Instance;
use crate::slot::{slot_id, slot_number};

/// Returns the free slots of an Instance that may be taken now, without those in `taken`.
///
/// Returns at most as many slots as [`left`]: used slots beyond a lowered capacity count until they are released.
pub fn free_slots(instance: &Instance, taken: &BTreeSet<String>) -> Vec<String> {
    let (name, spec) = (&instance.metadata.name, &instance.spec);
    let left = left(instance, taken);
    if left == 0 {
        return Vec::new();
    }
    (0..spec.capacity.min(MAX_CAPACITY))
        .map(|slot| slot_id(name, slot))
        .filter(|id| instance.usage(id).is_empty() && !taken.contains(id))
        .take(left)
        .collect()
}

/// Returns the number of free slots of an Instance, without those in `taken`.
pub fn left(instance: &Instance, taken: &BTreeSet<String>) -> usize {
    let also = taken.iter().filter(|id| {
        slot_number(&instance.metadata.name, id).is_some() && instance.usage(id).is_empty()
    });
    let capacity = instance.spec.capacity.min(MAX_CAPACITY);
    let free = usize::try_from(capacity.saturating_sub(instance.used())).unwrap_or(usize::MAX);
    free.saturating_sub(also.count())
}
