//! Builder methods of [`Device`]. They do not check the rules of the contract; the host drops a device that breaks one.

use crate::{Attribute, AttributeValue, Device, DeviceNode, Health, Mount};

impl Device {
    /// Creates a device with only an id; its health is unknown.
    ///
    /// `id` must be the same for the same device at every call and, for a shared device, on every node: a serial number, a
    /// UUID, a stable path. It has 1 to 1,024 bytes and no control characters.
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

    /// Declares the device visible from many nodes, or from this one only. The default is that of the
    /// [`Description`](crate::Description).
    #[must_use]
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = Some(shared);
        self
    }

    /// Sets an id of the physical hardware that does not depend on the handler: an endpoint reference, a USB serial and
    /// port, a PCI address. It has at most 256 bytes.
    #[must_use]
    pub fn physical_id(mut self, id: impl Into<String>) -> Self {
        self.physical_id = Some(id.into());
        self
    }

    /// Sets an environment variable for the workload, with a name like `[A-Za-z_][A-Za-z0-9_-]*`. A second value of the same
    /// name replaces the first. Values must not have control characters other than tab, newline and carriage return. Needs
    /// the grant `devices.env`.
    #[must_use]
    pub fn property(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        let name = name.into();
        self.properties.retain(|(other, _)| *other != name);
        self.properties.push((name, value.into()));
        self
    }

    /// Adds a device node below `/dev` that the workload may read and write, at the same path in the container. Needs the
    /// grant `devices.nodes`.
    #[must_use]
    pub fn node(self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.device_node(path.clone(), path, "rw")
    }

    /// Adds a device node with its own container path and permissions, which are some of `r`, `w` and `m`.
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

    /// Adds a read-only mount of a file or folder of the node, at the same path in the container. Use
    /// [`mount_at`](Self::mount_at) for another path or a writable mount. Needs the grant `devices.mounts`.
    #[must_use]
    pub fn mount(self, path: impl Into<String>) -> Self {
        let path = path.into();
        self.mount_at(path.clone(), path, true)
    }

    /// Adds a mount of a file or folder of the node at `container_path`.
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

    /// Sets an attribute to select the device by: `"text"`, a number, `true`, or [`AttributeValue::Version`]. `name` is a C
    /// identifier of at most 32 bytes, optionally prefixed with `domain/`. A second value of the same name replaces the
    /// first.
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

    /// Sets a capacity of the device as a Kubernetes quantity, such as `("memory", "80Gi")`. The name follows the rules of
    /// attribute names.
    #[must_use]
    pub fn capacity(mut self, name: impl Into<String>, quantity: impl Into<String>) -> Self {
        let name = name.into();
        self.capacity.retain(|(other, _)| *other != name);
        self.capacity.push((name, quantity.into()));
        self
    }

    /// Sets the health of the device.
    #[must_use]
    pub fn health(mut self, health: Health) -> Self {
        self.health = health;
        self
    }

    /// Returns the value of a property, if the device has it.
    pub fn get_property(&self, name: &str) -> Option<&str> {
        self.properties
            .iter()
            .find_map(|(other, value)| (other == name).then_some(value.as_str()))
    }

    /// Returns the value of an attribute, if the device has it.
    pub fn get_attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes
            .iter()
            .find_map(|other| (other.name == name).then_some(&other.value))
    }
}

impl AttributeValue {
    /// Creates a semantic version such as `1.2.3`, of at most 64 bytes.
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
