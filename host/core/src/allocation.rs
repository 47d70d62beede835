//! An allocation: who has which parts of which Instances, and what containers get with them.
//!
//! It is a value without a state. Whoever makes one has a life cycle for it: device plugins, whose holders are observed, and resource claims,
//! which the kubelet prepares and unprepares. Both take and give back a slot by the compare-and-swap that is made here.

use std::collections::BTreeMap;

use crate::edits::Edits;
use crate::instance::{Edit, Instance, InstanceKey};
use crate::slot::DeviceUsage;
use crate::usable::Usable;

/// Says who has devices, and which.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Whoever has them.
    pub consumer: Consumer,
    /// The devices, in the order in which plain variables are those of the first.
    pub shares: Vec<Share>,
}

/// Says who has devices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Consumer {
    /// A pod, by `namespace/name` and uid.
    Pod(String, String),
    /// A resource claim, by `namespace/name` and uid.
    Claim(String, String),
    /// A pod of which the kubelet has not said the name yet.
    NotKnownYet,
}

/// A device that is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Share {
    /// The Instance.
    pub instance: InstanceKey,
    /// The uid of that Instance object.
    pub uid: String,
    /// How much of the device it is.
    pub part: Part,
}

/// Says how much of a device is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// The slot with this id.
    Slot(String),
    /// All of it.
    Whole,
    /// So much of each capacity, by its name, as Kubernetes quantities.
    Portion(BTreeMap<String, String>),
}

impl Allocation {
    /// Returns what containers get: everything of all its devices that `device` finds, with the hash in the name of their Instance.
    pub fn edits<'a>(&self, device: impl Fn(&Share) -> Option<(&'a str, &'a Usable)>) -> Edits {
        let mut all = Edits::default();
        for (hash, usable) in self.shares.iter().filter_map(device) {
            let own = &usable.configured.configuration.broker_properties;
            all.add(Edits::of(hash, &usable.device, own));
        }
        all
    }
}

/// Returns the edits that take a free slot. Only a node in the list of nodes may take one.
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

/// Returns the edit that gives a slot back, if `usage` still has it.
pub fn give_back(slot: &str, usage: &DeviceUsage) -> Edit {
    Edit::Slot {
        id: slot.to_owned(),
        held: usage.clone(),
        new: DeviceUsage::Unused,
    }
}
