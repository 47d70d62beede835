//! The devices of this node as they are seen now: what plan, offers, CDI specs and slots are made of. Knows neither how they were found nor
//! what they are used for.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;

use crate::clock::Boot;
use crate::device::{Device, DeviceKey};
use crate::names::ConfigurationKey;
use crate::ports::ConfiguredDiscovery;
use crate::presence::{Absent, Presence};
use crate::resource_names::ResourceNames;

/// The devices of all Configurations. Equal snapshots are published once.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceSnapshot {
    /// Whether Configurations and handlers have been read once.
    pub read: bool,
    /// The boot in which the devices were seen.
    pub boot: Option<Boot>,
    /// By Configuration.
    pub configurations: BTreeMap<ConfigurationKey, Arc<ConfigurationDevices>>,
    /// The names that namespaces have.
    pub names: Arc<ResourceNames>,
    /// The other Configurations: deleted, or not read yet. Nothing is known of the devices of one that cannot be used as it is now written.
    pub absent: Absent<ConfigurationKey>,
}

impl DeviceSnapshot {
    /// How a Configuration stands.
    pub fn presence(&self, key: &ConfigurationKey) -> Presence<&Arc<ConfigurationDevices>> {
        match self.configurations.get(key) {
            Some(view) => Presence::Seen(view),
            None => self.absent.presence(key),
        }
    }

    /// How a device of a Configuration stands.
    pub fn device(&self, key: &ConfigurationKey, device: &DeviceKey) -> Presence<&DeviceView> {
        match self.presence(key) {
            Presence::Seen(view) => view.presence(device),
            Presence::Unknown => Presence::Unknown,
            Presence::Gone => Presence::Gone,
        }
    }
}

/// The devices of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigurationDevices {
    /// The Configuration they belong to.
    pub configured: Arc<ConfiguredDiscovery>,
    /// The devices it has or still keeps.
    pub devices: BTreeMap<DeviceKey, DeviceView>,
    /// The other devices: gone once every session has given a complete answer.
    pub absent: Absent<DeviceKey>,
}

impl ConfigurationDevices {
    /// How a device stands. Nothing is known of one that only the store has reported.
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

/// A device of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceView {
    /// As last reported; nothing if it has not been since the agent started.
    pub device: Option<Arc<Device>>,
    /// Since when it is missing.
    pub missing_since: Option<Timestamp>,
}
