//! Allocations: which consumer holds which parts of which Instances, and the edits its containers get for them.
//!
//! An [`Allocation`] is a plain value without a life cycle. Its owner drives one: device plugins, whose holders are
//! observed, and resource claims, which the kubelet prepares and unprepares. Both take and release a slot by the
//! compare-and-swap edits made here.

use std::collections::BTreeMap;

use crate::edits::Edits;
use crate::instance::{Edit, Instance, InstanceKey};
use crate::slot::DeviceUsage;
use crate::usable::Usable;

/// Devices given to one consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Consumer that holds the devices.
    pub consumer: Consumer,
    /// Devices in order of precedence: the first one sets the variables without a hash.
    pub shares: Vec<Share>,
}

/// Holder of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consumer {
    /// Pod, by `namespace/name` and uid.
    Pod(String, String),
    /// Resource claim, by `namespace/name` and uid.
    Claim(String, String),
    /// Pod whose name the kubelet has not reported yet.
    NotKnownYet,
}

/// Device of an allocation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// Key of the Instance.
    pub instance: InstanceKey,
    /// Uid of the Instance object.
    pub uid: String,
    /// Part of the device that is given.
    pub part: Part,
}

/// Part of a device that is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// Slot with this id.
    Slot(String),
    /// Entire device.
    Whole,
    /// Amount of each capacity, by name, as Kubernetes quantities.
    Portion(BTreeMap<String, String>),
}

impl Allocation {
    /// Returns the edits for containers: those of every share for which `device` returns the hash in the name of its
    /// Instance and the device.
    pub fn edits<'a>(&self, device: impl Fn(&Share) -> Option<(&'a str, &'a Usable)>) -> Edits {
        let mut all = Edits::default();
        for (hash, usable) in self.shares.iter().filter_map(device) {
            let own = &usable.configured.configuration.broker_properties;
            all.add(Edits::of(hash, &usable.device, own));
        }
        all
    }
}

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
    };
    joins.into_iter().chain([takes]).collect()
}

/// Returns the edit that releases a slot if `usage` still holds it.
pub fn give_back(slot: &str, usage: &DeviceUsage) -> Edit {
    Edit::Slot {
        id: slot.to_owned(),
        held: usage.clone(),
        new: DeviceUsage::Unused,
    }
}
