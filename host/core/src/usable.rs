//! Availability of an Instance's device to containers on this node. Does not know the users of the device.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::device::{Device, Health};
use crate::device_view::DeviceSnapshot;
use crate::edits::Edits;
use crate::instance::Instance;
use crate::ports::ConfiguredDiscovery;
use crate::presence::Presence;

/// Device that a container may get.
#[derive(Debug, Clone)]
pub struct Usable {
    /// Device as last reported.
    pub device: Arc<Device>,
    /// Current Configuration of the device.
    pub configured: Arc<ConfiguredDiscovery>,
}

impl Usable {
    /// Returns the edits for containers that get the device of an Instance. `properties` win over those of the
    /// Configuration.
    pub fn edits(&self, instance: &Instance, properties: &BTreeMap<String, String>) -> Edits {
        let mut own = self.configured.configuration.broker_properties.clone();
        own.extend(properties.clone());
        Edits::of(instance.hash().unwrap_or_default(), &self.device, &own)
    }
}

/// Reason why a container may not get a device.
#[derive(Debug, Clone)]
pub enum Unusable {
    /// Reported or recorded as unhealthy.
    Unhealthy {
        /// Reason why the device is unhealthy.
        why: String,
        /// Device as last reported, unless it is missing.
        device: Option<Arc<Device>>,
    },
    /// Known to be absent.
    Gone,
    /// Not reported since the agent started, or its Configuration is not in effect.
    NotSeen,
}

impl Unusable {
    /// Returns true if a container that has the device may keep it.
    pub fn is_kept(&self) -> bool {
        matches!(self, Self::NotSeen)
    }

    /// Returns the reason as a text that names the Instance.
    pub fn describe(&self, instance: &str) -> String {
        let device = format!("the device of Instance {instance}");
        match self {
            Self::Unhealthy { why, .. } => format!("{device} is unhealthy: {why}"),
            Self::Gone => format!("{device} no longer exists"),
            Self::NotSeen => format!("{device} has not been seen since the agent started"),
        }
    }
}

/// Returns the Configuration of an Instance, if it is in effect.
pub fn configured<'a>(
    devices: &'a DeviceSnapshot,
    instance: &Instance,
) -> Option<&'a Arc<ConfiguredDiscovery>> {
    let view = devices.configurations.get(&instance.configuration()?);
    view.map(|view| &view.configured)
}

/// Looks up the device of an Instance. For a device not reported since the agent started, takes the health from the
/// Instance's status.
pub fn usable(
    node: &str,
    devices: &DeviceSnapshot,
    instance: &Instance,
) -> Result<Usable, Unusable> {
    let key = instance.configuration();
    let presence = match (&key, instance.device_key()) {
        (Some(key), Some(device)) => devices.device(key, &device),
        // Agents of Akri write no device id.
        (Some(key), None) => match devices.presence(key) {
            Presence::Seen(view) if view.absent.is_gone() => Presence::Gone,
            Presence::Seen(_) | Presence::Unknown => Presence::Unknown,
            Presence::Gone => Presence::Gone,
        },
        (None, _) if devices.absent.is_gone() => Presence::Gone,
        (None, _) => Presence::Unknown,
    };
    let (view, is_missing) = match presence {
        Presence::Seen(view) => (Some(view), view.missing_since.is_some()),
        Presence::Unknown => (None, false),
        Presence::Gone => (None, true),
    };
    let reported = view.and_then(|view| view.device.as_ref());
    let health = match reported {
        Some(device) => Some(&device.health),
        None => instance.status.nodes.get(node).map(|status| &status.health),
    };
    let device = reported.filter(|_| !is_missing).cloned();
    if let Some(Health::Unhealthy(why)) = health {
        let why = why.clone();
        return Err(Unusable::Unhealthy { why, device });
    }
    if is_missing {
        return Err(Unusable::Gone);
    }
    let configured = configured(devices, instance).cloned();
    match (device, configured) {
        (Some(device), Some(configured)) => Ok(Usable { device, configured }),
        _ => Err(Unusable::NotSeen),
    }
}
