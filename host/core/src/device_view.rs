//! Current view of the devices of this node, from which plans, offers, CDI specs and slots are derived. Does not depend on how devices are found or
//! used.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::clock::Boot;
use crate::device::{Device, DeviceKey};
use crate::names::ConfigurationKey;
use crate::ports::ConfiguredDiscovery;
use crate::presence::{Absent, Presence};
use crate::resource_names::ResourceNames;

/// Devices of all Configurations. Equal snapshots are published once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSnapshot {
    /// True once Configurations and handlers have been read.
    pub read: bool,
    /// Boot in which the devices were seen.
    pub boot: Option<Boot>,
    /// Devices by Configuration.
    pub configurations: BTreeMap<ConfigurationKey, Arc<ConfigurationDevices>>,
    /// Resource names by namespace.
    pub names: Arc<ResourceNames>,
    /// State of the other Configurations: deleted, or not read yet. The devices of a Configuration that is currently
    /// invalid are unknown.
    pub absent: Absent<ConfigurationKey>,
}

impl DeviceSnapshot {
    /// Returns the presence of a Configuration.
    pub fn presence(&self, key: &ConfigurationKey) -> Presence<&Arc<ConfigurationDevices>> {
        match self.configurations.get(key) {
            Some(view) => Presence::Seen(view),
            None => self.absent.presence(key),
        }
    }

    /// Returns the presence of a device of a Configuration.
    pub fn device(&self, key: &ConfigurationKey, device: &DeviceKey) -> Presence<&DeviceView> {
        match self.presence(key) {
            Presence::Seen(view) => view.presence(device),
            Presence::Unknown => Presence::Unknown,
            Presence::Gone => Presence::Gone,
        }
    }
}

/// Devices of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationDevices {
    /// Configuration that the devices belong to.
    pub configured: Arc<ConfiguredDiscovery>,
    /// Devices that the Configuration has or still keeps.
    pub devices: BTreeMap<DeviceKey, DeviceView>,
    /// State of the other devices: gone once every session has given a complete answer.
    pub absent: Absent<DeviceKey>,
}

impl ConfigurationDevices {
    /// Returns the presence of a device. A device known only from the store is [`Presence::Unknown`].
    pub fn presence(&self, key: &DeviceKey) -> Presence<&DeviceView> {
        match self.devices.get(key) {
            Some(view) if view.device.is_some() || view.missing_since.is_some() => {
                Presence::Seen(view)
            }
            Some(_) => Presence::Unknown,
            None => self.absent.presence(key),
        }
    }
}

/// Device of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// Device as last reported; `None` if not reported since the agent started.
    pub device: Option<Arc<Device>>,
    /// Time since which the device is missing.
    pub missing_since: Option<Timestamp>,
}
