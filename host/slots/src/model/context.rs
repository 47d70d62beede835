//! State of this node from which decisions about slots are made.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::InstanceSet;
use leafhost_kubelet::KubeletRun;

use super::hold::Hold;
use super::holds::Holds;
use super::view::Owners;

impl SlotContext<'_> {
    /// Returns the slots of an Instance that are in use although it does not record it: those of `holds` that are not stored in it, and
    /// those of Instances with the same name in other namespaces.
    pub fn taken<'h>(
        &self,
        key: &InstanceKey,
        holds: impl Iterator<Item = &'h Hold>,
    ) -> BTreeSet<String> {
        let unsaid = holds.filter(|hold| hold.stored.as_ref() != Some(key));
        let mut taken: BTreeSet<String> = unsaid.map(|hold| hold.slot.clone()).collect();
        let others = self.owners.namesakes.get(&key.name).into_iter().flatten();
        let others = others.filter(|other| *other != key);
        let others = others.filter_map(|other| self.instances.instances.get(other));
        for (slot, usage) in others.flat_map(|other| &other.spec.device_usage) {
            if !usage.is_empty() {
                taken.insert(slot.clone());
            }
        }
        taken
    }

    /// Returns true if no free slot of the Instance is given for now.
    pub fn is_held_back(&self, instance: &Instance) -> bool {
        let is_barred = || self.barred.contains(&instance.key());
        self.new.contains(&instance.metadata.uid) || (!self.barred.is_empty() && is_barred())
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
    pub owners: &'a Owners,
    /// Slots of this node.
    pub holds: &'a Holds,
    /// Uids of Instances of which no slot is given yet; see [`super::newcomers`].
    pub new: &'a BTreeSet<String>,
    /// Instances that cannot be written, of which no slot is given.
    pub barred: &'a BTreeSet<InstanceKey>,
    /// Kubelet that runs now.
    pub kubelet: Option<KubeletRun>,
}
