//! State of this node from which the slot task decides.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::InstanceSet;
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

use super::name_index::NameIndex;
use super::slot_state::SlotState;
use super::slot_table::SlotTable;

impl SlotContext<'_> {
    /// Returns the slots of an Instance that are in use although it does not record it: those of `states` that are not stored in it, and
    /// those of Instances with the same name in other namespaces.
    pub fn taken<'h>(
        &self,
        key: &InstanceKey,
        states: impl Iterator<Item = &'h SlotState>,
    ) -> BTreeSet<String> {
        let unrecorded = states.filter(|state| state.stored.as_ref() != Some(key));
        let mut taken: BTreeSet<String> = unrecorded.map(|state| state.slot.clone()).collect();
        let others = self
            .name_index
            .namesakes
            .get(&key.name)
            .into_iter()
            .flatten();
        let others = others.filter(|other| *other != key);
        let others = others.filter_map(|other| self.instances.instances.get(other));
        for (slot, usage) in others.flat_map(|other| &other.spec.device_usage) {
            if !usage.is_empty() {
                taken.insert(slot.clone());
            }
        }
        taken
    }

    /// Returns true if no free slot of the Instance may be allocated for now.
    pub fn is_held_back(&self, instance: &Instance) -> bool {
        let is_barred = || self.barred.contains(&instance.key());
        self.new.contains_key(&instance.metadata.uid) || (!self.barred.is_empty() && is_barred())
    }
}

/// State of this node at one moment.
#[derive(Clone, Copy)]
pub struct SlotContext<'a> {
    /// Name of this node.
    pub node: &'a str,
    /// Devices as discovery sees them now.
    pub devices: &'a Arc<DeviceSnapshot>,
    /// Instances of the store.
    pub instances: &'a InstanceSet,
    /// Owners of the resource names.
    pub name_index: &'a NameIndex,
    /// Slots of this node.
    pub slot_table: &'a SlotTable,
    /// Uids of Instances of which no slot is allocated yet, with the end of the wait; see [`super::warmup`].
    pub new: &'a BTreeMap<String, Instant>,
    /// Instances that cannot be written, of which no slot is allocated.
    pub barred: &'a BTreeSet<InstanceKey>,
    /// Kubelet that runs now.
    pub kubelet: Option<KubeletRun>,
}
