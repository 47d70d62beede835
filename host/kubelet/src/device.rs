//! What a plugin offers: resources, their device ids, and the health of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ResourceName;

/// Whether the kubelet may give a device to a new container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// It may.
    Healthy,
    /// It may not; a container that has the device keeps it.
    Unhealthy,
}

impl Health {
    /// The word on the wire.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "Healthy",
            Self::Unhealthy => "Unhealthy",
        }
    }
}

/// One device id of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Its health.
    pub health: Health,
    /// The NUMA node it is near to, where that is known.
    pub numa: Option<i64>,
}

/// The device ids of a resource. An empty map ends the resource like an absent one.
pub type Devices = BTreeMap<String, Device>;

/// Everything that is offered. A list that stays the same should keep its `Arc`, because equal `Arc`s are not compared.
pub type Offers = BTreeMap<ResourceName, Arc<Devices>>;
