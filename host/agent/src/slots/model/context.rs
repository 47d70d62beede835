//! What this node knows when it decides about slots.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::ports::InstanceSet;
use leafhost_kubelet::KubeletRun;

use super::holds::Holds;
use super::view::Owners;
use crate::discovery::DeviceSnapshot;

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
    /// The kubelet that runs now.
    pub kubelet: Option<KubeletRun>,
}
