//! What this node knows when it decides about slots.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::InstanceSet;
use leafhost_kubelet::KubeletRun;

use super::holds::Holds;
use super::view::Owners;
use crate::discovery::DeviceSnapshot;

impl SlotContext<'_> {
    /// Tells that no free slot of the Instance is given for the time being.
    pub fn is_held_back(&self, instance: &Instance) -> bool {
        let is_barred = || self.barred.contains(&instance.key());
        self.new.contains(&instance.metadata.uid) || (!self.barred.is_empty() && is_barred())
    }
}

/// All of it, at one moment.
#[derive(Clone, Copy)]
pub struct SlotContext<'a> {
    /// This node.
    pub node: &'a str,
    /// The devices as they are seen now.
    pub devices: &'a Arc<DeviceSnapshot>,
    /// The Instances.
    pub instances: &'a InstanceSet,
    /// What the resources' names stand for.
    pub owners: &'a Owners,
    /// The slots of this node.
    pub holds: &'a Holds,
    /// The uids of Instances of which no slot is given yet: see [`super::newcomers`].
    pub new: &'a BTreeSet<String>,
    /// The Instances that cannot be written, of which no slot is given either.
    pub barred: &'a BTreeSet<InstanceKey>,
    /// The kubelet that runs now.
    pub kubelet: Option<KubeletRun>,
}
