//! How slots are called towards the kubelet. Pure.

use crate::instance::Instance;
use crate::names::GROUP;
use crate::slot::DeviceUsage;

/// One device id of one resource, as the kubelet knows it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Unit {
    /// `akri.sh/<instance>` or `akri.sh/<configuration>`.
    pub resource: String,
    /// The slot's id, or that of a virtual device.
    pub id: String,
}

impl std::fmt::Display for Unit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.resource, self.id)
    }
}

/// `akri.sh/<name>`: the resource of an Instance or a Configuration.
pub fn resource(name: &str) -> String {
    format!("{GROUP}/{name}")
}

/// The name in `akri.sh/<name>`.
pub fn resource_name(resource: &str) -> Option<&str> {
    resource.strip_prefix(GROUP)?.strip_prefix('/')
}

/// `<configuration>-<n>`: a device id of the Configuration's resource. Which slot is behind it is decided when it is
/// allocated.
pub fn virtual_id(configuration: &str, number: u32) -> String {
    format!("{configuration}-{number}")
}

/// What the kubelet calls a slot that `node` has; nothing if it is free or another node's.
pub fn unit_of(node: &str, instance: &Instance, slot: &str, usage: &DeviceUsage) -> Option<Unit> {
    match usage {
        DeviceUsage::Node(holder) if holder == node => Some(Unit {
            resource: resource(&instance.metadata.name),
            id: slot.to_owned(),
        }),
        DeviceUsage::Configuration {
            device,
            node: holder,
        } if holder == node => {
            let configuration = &instance.spec.configuration_name;
            Some(Unit {
                resource: resource(configuration),
                // Older agents of Akri wrote the number alone.
                id: device.parse().map_or_else(
                    |_| device.clone(),
                    |number: u32| virtual_id(configuration, number),
                ),
            })
        }
        _ => None,
    }
}
