//! Offers of a plugin: resources, their device ids, and the health of each.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::ResourceName;

/// Health of a device, which decides whether the kubelet may give it to a new container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, strum::IntoStaticStr)]
pub enum Health {
    /// The kubelet may give the device to a container.
    Healthy,
    /// The kubelet may give the device to no further container; a container that has the device keeps it.
    Unhealthy,
}

impl Health {
    /// Returns the value in the device-plugin API.
    pub fn as_str(self) -> &'static str {
        self.into()
    }
}

/// State of one device of a resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Device {
    /// Health of the device.
    pub health: Health,
    /// NUMA node of the device, if it is known.
    pub numa: Option<i64>,
}

/// Devices of a resource by id. An empty map withdraws the resource, like a missing one.
pub type Devices = BTreeMap<String, Device>;

/// All offers. A list that stays the same should keep its `Arc`; the content of the same `Arc` is not compared.
pub type Offers = BTreeMap<ResourceName, Arc<Devices>>;
