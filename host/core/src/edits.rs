//! Edits that a container gets with its devices, for container runtimes and the kubelet alike. Pure.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::device::{Device, DeviceNode, Mount};

/// Environment variables, device nodes and mounts of a container; each name and path occurs once.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Edits {
    /// Environment variables by name.
    pub env: BTreeMap<String, String>,
    /// Device nodes by their path in the container.
    pub nodes: BTreeMap<String, DeviceNode>,
    /// Mounts by their path in the container.
    pub mounts: BTreeMap<String, Mount>,
}

impl Edits {
    /// Returns the edits of one device. Each property appears under its own name and with the hash appended to the
    /// name, as in Akri. Properties of the Configuration win.
    pub fn of(hash: &str, device: &Device, own: &BTreeMap<String, String>) -> Self {
        let suffix = hash.to_uppercase();
        let mut env = BTreeMap::new();
        for (name, value) in device.properties.iter().chain(own) {
            env.insert(name.clone(), value.clone());
            env.insert(format!("{name}_{suffix}"), value.clone());
        }
        let mut device_edits = Self {
            env,
            ..Self::default()
        };
        for node in &device.nodes {
            device_edits.add_node(node.clone());
        }
        for mount in &device.mounts {
            device_edits.add_mount(mount.clone());
        }
        device_edits
    }

    /// Returns true if the edits change nothing in a container.
    pub fn is_empty(&self) -> bool {
        self.env.is_empty() && self.nodes.is_empty() && self.mounts.is_empty()
    }

    /// Adds the entries of `other` that are missing. A device node in both gets the union of the permissions.
    pub fn add(&mut self, other: Self) {
        for (name, value) in other.env {
            self.env.entry(name).or_insert(value);
        }
        for node in other.nodes.into_values() {
            self.add_node(node);
        }
        for mount in other.mounts.into_values() {
            self.add_mount(mount);
        }
    }

    fn add_node(&mut self, node: DeviceNode) {
        match self.nodes.get_mut(&node.container_path) {
            None => drop(self.nodes.insert(node.container_path.clone(), node)),
            Some(held) if held.host_path == node.host_path => {
                held.permissions = union(&held.permissions, &node.permissions);
            }
            Some(_) => {}
        }
    }

    fn add_mount(&mut self, mount: Mount) {
        self.mounts
            .entry(mount.container_path.clone())
            .or_insert(mount);
    }
}

/// Returns the union of two permissions, as letters of `rwm`.
pub fn union(one: &str, two: &str) -> String {
    "rwm"
        .chars()
        .filter(|&c| one.contains(c) || two.contains(c))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_device(id: &str, properties: &[(&str, &str)], permissions: &str) -> Device {
        let mut device = Device::new(id, false);
        device.properties = properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        device.nodes = vec![DeviceNode {
            container_path: "/dev/it".into(),
            host_path: "/dev/it".into(),
            permissions: permissions.into(),
        }];
        device
    }

    #[test]
    fn the_first_device_gives_the_plain_variables_and_each_its_own() {
        let own = BTreeMap::from([("MODE".to_owned(), "fast".to_owned())]);
        let mut all = Edits::of(
            "aa11",
            &mk_device("a", &[("ID", "a"), ("MODE", "slow")], "r"),
            &own,
        );
        all.add(Edits::of(
            "bb22",
            &mk_device("b", &[("ID", "b")], "w"),
            &own,
        ));
        let text: Vec<_> = all.env.iter().map(|(k, v)| format!("{k}={v}")).collect();
        assert_eq!(
            text.join(" "),
            "ID=a ID_AA11=a ID_BB22=b MODE=fast MODE_AA11=fast MODE_BB22=fast"
        );
        assert_eq!(all.nodes["/dev/it"].permissions, "rw");
    }
}
