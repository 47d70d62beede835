//! Names of slots in the kubelet's terms: resources and device ids. Pure.

use crate::instance::Instance;
use crate::names::GROUP;
use crate::slot::DeviceUsage;

/// Device id of a resource, as the kubelet knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceId {
    /// Resource name: `akri.sh/<instance>` or `akri.sh/<configuration>`.
    pub resource: String,
    /// Id of the slot, or of a virtual device.
    pub id: String,
}

impl DeviceId {
    /// Creates an id of a resource.
    pub fn new(resource: impl Into<String>, id: impl Into<String>) -> Self {
        Self {
            resource: resource.into(),
            id: id.into(),
        }
    }
}

impl std::fmt::Display for DeviceId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.resource, self.id)
    }
}

/// Returns `akri.sh/<name>`: the resource of an Instance or a Configuration.
pub fn resource(name: &str) -> String {
    format!("{GROUP}/{name}")
}

/// Returns the name in `akri.sh/<name>`.
pub fn resource_name(resource: &str) -> Option<&str> {
    resource.strip_prefix(GROUP)?.strip_prefix('/')
}

/// Returns `<configuration>-<n>`: a device id of the Configuration's resource. The slot is chosen at allocation.
pub fn virtual_id(configuration: &str, number: u32) -> String {
    format!("{configuration}-{number}")
}

/// Returns the resource and device id of a slot that `node` holds through a device plugin; `None` for any other usage.
pub fn device_id_of(
    node: &str,
    instance: &Instance,
    slot: &str,
    usage: &DeviceUsage,
) -> Option<DeviceId> {
    match usage {
        DeviceUsage::Node(holder) if holder == node => {
            Some(DeviceId::new(resource(&instance.metadata.name), slot))
        }
        DeviceUsage::Configuration {
            device,
            node: holder,
        } if holder == node => {
            let configuration = &instance.spec.configuration_name;
            Some(DeviceId {
                resource: resource(configuration),
                // Older Akri agents wrote only the number.
                id: device.parse().map_or_else(
                    |_| device.clone(),
                    |number: u32| virtual_id(configuration, number),
                ),
            })
        }
        _ => None,
    }
}
