//! A device, built step by step. Knows nothing of the host: what breaks a rule of the contract is left out there.

use crate::{Attribute, AttributeValue, Device, DeviceNode, Health, Mount};

impl Device {
    /// A device of which nothing is known but its id, whose health nobody can tell.
    ///
    /// `id` is the same for the same device at every call and, for a shared device, on every node: a serial number, a
    /// UUID, a path that stays. 1 to 1,024 bytes without control characters.
    pub fn new(id: impl Into<String>) -> Self {
        Self {
            id: id.into(),
            shared: None,
            physical_id: None,
            properties: Vec::new(),
            mounts: Vec::new(),
            device_nodes: Vec::new(),
            attributes: Vec::new(),
            capacity: Vec::new(),
            health: Health::Unknown,
        }
    }

    /// Whether the device is visible from many nodes; without this as [`Description`](crate::Description) says.
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = Some(shared);
        self
    }

    /// What identifies the piece of hardware, whichever handler found it: an endpoint reference, a USB serial and
    /// port, a PCI address. At most 256 bytes.
    #[must_use]
    pub fn physical_id(mut self, id: impl Into<String>) -> Self {
        self.physical_id = Some(id.into());
        self
    }

    /// An environment variable for the workload, `[A-Za-z_][A-Za-z0-9_-]*`; a name said twice has the last value.
    /// A value has no control characters but tab, newline and carriage return. Needs the grant `devices.env`.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.properties.retain(|(other, _)| *other != name);
        self.properties.push((name, value.into()));
        self
    }

    /// A device node below `/dev` that the workload may read and write, at the same path in the container. Needs the
    /// grant `devices.nodes`.
    #[must_use]
    pub fn node(self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.device_node(path.clone(), path, "rw")
    }

    /// A device node with all there is to say: `permissions` are some of `r`, `w` and `m`.
    #[must_use]
    pub fn device_node(
        mut self,
        host_path: impl Into<String>,
        container_path: impl Into<String>,
        permissions: impl Into<String>,
    ) -> Self {
        self.device_nodes.push(DeviceNode {
            container_path: container_path.into(),
            host_path: host_path.into(),
            permissions: permissions.into(),
        });
        self
    }

    /// A file or folder of the node that the workload may read at the same path; [`mount_at`](Self::mount_at) has all
    /// there is to say. Needs the grant `devices.mounts`.
    #[must_use]
    pub fn mount(self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.mount_at(path.clone(), path, true)
    }

    /// A file or folder of the node that the workload sees at `container_path`.
    #[must_use]
    pub fn mount_at(
        mut self,
        host_path: impl Into<String>,
        container_path: impl Into<String>,
        read_only: bool,
    ) -> Self {
        self.mounts.push(Mount {
            container_path: container_path.into(),
            host_path: host_path.into(),
            read_only,
        });
        self
    }

    /// Something to choose the device by: `"text"`, a number, `true`, or
    /// [`AttributeValue::Version`]. `name` is a C identifier of at most 32 bytes, perhaps behind
    /// `domain/`; a name said twice has the last value.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, value: impl Into<AttributeValue>) -> Self {
        let name = name.into();
        self.attributes.retain(|other| other.name != name);
        self.attributes.push(Attribute {
            name,
            value: value.into(),
        });
        self
    }

    /// An amount of what the device has, a Kubernetes quantity: `("memory", "80Gi")`. Named like an attribute.
    #[must_use]
    pub fn capacity(mut self, name: impl Into<String>, quantity: impl Into<String>) -> Self {
        let name = name.into();
        self.capacity.retain(|(other, _)| *other != name);
        self.capacity.push((name, quantity.into()));
        self
    }

    /// Whether the device works.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.health = health;
        self
    }

    /// The value of a property, if the device has it.
    pub fn get_property(&self, name: &str) -> Option<&str> {
        self.properties
            .iter()
            .find_map(|(other, value)| (other == name).then_some(value.as_str()))
    }

    /// The value of an attribute, if the device has it.
    pub fn get_attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes
            .iter()
            .find_map(|other| (other.name == name).then_some(&other.value))
    }
}

impl AttributeValue {
    /// A semantic version, `1.2.3`, at most 64 bytes.
    pub fn version(version: impl Into<String>) -> Self {
        Self::Version(version.into())
    }
}

impl From<&str> for AttributeValue {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for AttributeValue {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl From<bool> for AttributeValue {
    fn from(yes: bool) -> Self {
        Self::Boolean(yes)
    }
}

macro_rules! from_numbers {
    ($($number:ty),*) => {$(
        impl From<$number> for AttributeValue {
            fn from(number: $number) -> Self {
                Self::Integer(number.into())
            }
        }
    )*};
}

from_numbers!(i64, i32, u32, u16, u8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_name_has_the_last_value() {
        let device = Device::new("d")
            .property("A", "1")
            .property("B", "2")
            .property("A", "3")
            .attribute("a", 1_u32)
            .attribute("a", "x")
            .capacity("memory", "1Gi")
            .capacity("memory", "2Gi");
        assert_eq!(device.properties.len(), 2);
        assert_eq!(device.get_property("A"), Some("3"));
        assert_eq!(device.get_attribute("a"), Some(&"x".into()));
        assert_eq!(device.attributes.len(), 1);
        assert_eq!(device.capacity, [("memory".to_owned(), "2Gi".to_owned())]);
    }

    #[test]
    fn a_node_has_the_same_path_and_is_read_write() {
        assert_eq!(
            Device::new("d").node("/dev/video0").device_nodes,
            [DeviceNode {
                container_path: "/dev/video0".into(),
                host_path: "/dev/video0".into(),
                permissions: "rw".into(),
            }]
        );
    }

    #[test]
    fn a_mount_is_read_only_by_default() {
        let mounts = Device::new("d")
            .mount("/run/udev")
            .mount_at("/srv/a", "/a", false)
            .mounts;
        assert_eq!(
            mounts
                .iter()
                .map(|mount| (mount.container_path.as_str(), mount.read_only))
                .collect::<Vec<_>>(),
            [("/run/udev", true), ("/a", false)]
        );
    }
}
