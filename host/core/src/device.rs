//! Devices as reported by handlers, and the rules that every reported device must satisfy.
//!
//! Knows no grants: the code that reads the guest's answer checks whether a device node or mount may be handed out.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::attribute::{self, AttributeValue, Attributes, Capacities};
use crate::names::is_property_name;
use crate::text;

/// Maximum length of a device id, in bytes.
pub const MAX_ID: usize = 1024;
/// Maximum text of one device, in bytes.
pub const MAX_TEXT: usize = 64 << 10;

/// File or folder of the node that is mounted into the workload.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Mount {
    /// Absolute path in the container.
    pub container_path: String,
    /// Absolute path on the node.
    pub host_path: String,
    /// True if the workload may not write.
    pub read_only: bool,
}

/// Device node that the workload gets.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceNode {
    /// Absolute path in the container.
    pub container_path: String,
    /// Absolute path on the node.
    pub host_path: String,
    /// Permissions: some of `r`, `w`, `m`.
    pub permissions: String,
}

/// Health of a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(tag = "health", content = "reason")]
pub enum Health {
    /// Working.
    Healthy,
    /// Present but not working, for this reason.
    Unhealthy(String),
    /// Not determined by the handler.
    Unknown,
}

/// Device as reported by a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Id of the device; a shared device has one id on all nodes.
    pub id: String,
    /// True if many nodes can see the device.
    pub shared: bool,
    /// Id of the piece of hardware, independent of the handler that found it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub physical_id: Option<String>,
    /// Environment variables of the workload.
    pub properties: BTreeMap<String, String>,
    /// Files and folders for the workload.
    pub mounts: Vec<Mount>,
    /// Device nodes for the workload.
    #[serde(rename = "deviceNodes")]
    pub nodes: Vec<DeviceNode>,
    /// Attributes by which schedulers select devices.
    pub attributes: Attributes,
    /// Amounts that the device provides.
    pub capacity: Capacities,
    /// Health of the device.
    #[serde(flatten)]
    pub health: Health,
}

impl Device {
    /// Creates a healthy device with an id and nothing else.
    pub fn new(id: impl Into<String>, shared: bool) -> Self {
        Self {
            id: id.into(),
            shared,
            physical_id: None,
            properties: BTreeMap::new(),
            mounts: Vec::new(),
            nodes: Vec::new(),
            attributes: Attributes::new(),
            capacity: Capacities::new(),
            health: Health::Healthy,
        }
    }

    /// Returns true if the device gives containers this property, or a node or mount at this path.
    pub fn gives(&self, item: &str) -> bool {
        self.properties.contains_key(item)
            || self.nodes.iter().any(|node| node.container_path == item)
            || self.mounts.iter().any(|mount| mount.container_path == item)
    }

    /// Returns the key of the device within a Configuration.
    pub fn key(&self) -> DeviceKey {
        DeviceKey {
            id: self.id.clone(),
            shared: self.shared,
        }
    }

    /// Returns the first rule of the contract that the device breaks, worded for the author of the handler.
    pub fn problem(&self) -> Option<String> {
        if let Some(problem) = id_problem(&self.id) {
            return Some(problem.to_owned());
        }
        let is_wrong =
            |id: &String| !(1..=256).contains(&id.len()) || id.contains(char::is_control);
        if self.physical_id.as_ref().is_some_and(is_wrong) {
            let problem = "physical-id must be 1 to 256 bytes without control characters";
            return Some(problem.to_owned());
        }
        if self.text() > MAX_TEXT {
            return Some(format!("has more than {MAX_TEXT} bytes of text"));
        }
        for (name, value) in &self.properties {
            if !is_property_name(name) {
                return Some(format!(
                    "property {name:?} must be letters, digits, _ and -, not beginning with a digit or -"
                ));
            }
            if value.contains(text::is_foreign_control) {
                return Some(format!(
                    "property {name} has a control character other than tab, newline and carriage return in its value"
                ));
            }
        }
        for mount in &self.mounts {
            for path in [&mount.container_path, &mount.host_path] {
                if let Some(problem) = path_problem(path) {
                    return Some(format!("mount {path:?} {problem}"));
                }
            }
        }
        for node in &self.nodes {
            for path in [&node.container_path, &node.host_path] {
                if let Some(problem) = path_problem(path) {
                    return Some(format!("device node {path:?} {problem}"));
                }
            }
            if !is_permissions(&node.permissions) {
                return Some(format!(
                    "device node {:?} has permissions {:?}, not some of rwm",
                    node.host_path, node.permissions
                ));
            }
        }
        if self.attributes.len() + self.capacity.len() > attribute::MAX_COUNT {
            return Some(format!(
                "has more than {} attributes and capacities",
                attribute::MAX_COUNT
            ));
        }
        for (name, value) in &self.attributes {
            if let Some(problem) =
                attribute::name_problem(name).or_else(|| attribute::value_problem(value))
            {
                return Some(format!("attribute {name:?} {problem}"));
            }
        }
        for (name, quantity) in &self.capacity {
            if let Some(problem) = attribute::name_problem(name) {
                return Some(format!("capacity {name:?} {problem}"));
            }
            if !attribute::is_quantity(quantity) {
                return Some(format!(
                    "capacity {name:?} is {quantity:?}, not a Kubernetes quantity"
                ));
            }
        }
        None
    }

    /// Returns all texts of the device.
    pub fn texts(&self) -> impl Iterator<Item = &String> {
        let pairs = self.properties.iter().chain(&self.capacity);
        let mounts = self.mounts.iter();
        let mounts = mounts.flat_map(|mount| [&mount.container_path, &mount.host_path]);
        let nodes = self.nodes.iter();
        let nodes =
            nodes.flat_map(|node| [&node.container_path, &node.host_path, &node.permissions]);
        let attributes = self.attributes.iter().flat_map(|(name, value)| {
            let text = match value {
                AttributeValue::String(text) | AttributeValue::Version(text) => Some(text),
                AttributeValue::Int(_) | AttributeValue::Bool(_) => None,
            };
            [Some(name), text].into_iter().flatten()
        });
        let reason = match &self.health {
            Health::Unhealthy(reason) => Some(reason),
            Health::Healthy | Health::Unknown => None,
        };
        [Some(&self.id), self.physical_id.as_ref(), reason]
            .into_iter()
            .flatten()
            .chain(pairs.flat_map(|(name, value)| [name, value]))
            .chain(mounts)
            .chain(nodes)
            .chain(attributes)
    }

    /// Returns the total text of the device, in bytes.
    pub fn text(&self) -> usize {
        self.texts().map(String::len).sum()
    }
}

/// Identity of a device within a Configuration. Two handlers that report the same key report one device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceKey {
    /// Id of the device.
    pub id: String,
    /// True if the device is shared: a local and a shared device with the same id are two devices.
    pub shared: bool,
}

/// Returns the reason why a device id is invalid, if any.
pub fn id_problem(id: &str) -> Option<&'static str> {
    if id.is_empty() {
        Some("id is empty")
    } else if id.len() > MAX_ID {
        Some("id is longer than 1,024 bytes")
    } else if id.contains(char::is_control) {
        Some("id has a control character")
    } else {
        None
    }
}

/// Returns the reason why a path is invalid, if any: it must be absolute, without `..`, `.`, empty parts and control
/// characters.
pub fn path_problem(path: &str) -> Option<&'static str> {
    let Some(rest) = path.strip_prefix('/') else {
        return Some("is not absolute");
    };
    if path.contains(char::is_control) {
        Some("has a control character")
    } else if rest.split('/').any(|part| matches!(part, "" | "." | "..")) {
        Some("has an empty part, '.' or '..'")
    } else if path.len() > 4095 {
        Some("is longer than 4,095 bytes")
    } else {
        None
    }
}

fn is_permissions(text: &str) -> bool {
    let is_known = |c: char| matches!(c, 'r' | 'w' | 'm') && text.matches(c).count() == 1;
    !text.is_empty() && text.chars().all(is_known)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attribute::AttributeValue;

    #[test]
    fn a_device_that_breaks_the_contract_is_told_how() {
        type Break = fn(&mut Device);
        let table: [(Break, &str); 15] = [
            (|d| d.id = String::new(), "id is empty"),
            (|d| d.id = "a\0b".into(), "control character"),
            (|d| d.id = "a\nb".into(), "control character"),
            (|d| d.id = "x".repeat(1 << 20), "longer than 1,024"),
            (
                |d| drop(d.properties.insert("A=B".into(), String::new())),
                "A=B",
            ),
            (
                |d| drop(d.properties.insert("A".into(), "\0".into())),
                "property A has a control character",
            ),
            (
                |d| drop(d.properties.insert("A".into(), "\u{1}".repeat(9))),
                "property A has a control character",
            ),
            (
                |d| drop(d.properties.insert("A".into(), "ä\u{9b}".into())),
                "property A has a control character",
            ),
            (
                |d| drop(d.properties.insert("A".into(), "x".repeat(65 << 10))),
                "bytes of text",
            ),
            (
                |d| {
                    d.mounts.push(Mount {
                        container_path: "/a/../b".into(),
                        host_path: "/a".into(),
                        read_only: true,
                    });
                },
                "'..'",
            ),
            (
                |d| {
                    d.mounts.push(Mount {
                        container_path: "a".into(),
                        host_path: "/a".into(),
                        read_only: true,
                    });
                },
                "not absolute",
            ),
            (
                |d| {
                    d.nodes.push(DeviceNode {
                        container_path: "/dev/a".into(),
                        host_path: "/dev/a".into(),
                        permissions: "rr".into(),
                    });
                },
                "rwm",
            ),
            (
                |d| {
                    drop(
                        d.attributes
                            .insert("a-b".into(), AttributeValue::Bool(true)),
                    );
                },
                "C identifier",
            ),
            (
                |d| drop(d.capacity.insert("memory".into(), "lots".into())),
                "quantity",
            ),
            (|d| d.physical_id = Some(String::new()), "physical-id"),
        ];
        let mut fine = Device::new("/devices/a/../b", false);
        let lines = "\tone\r\nzwö\n";
        fine.properties.insert("A".into(), lines.into());
        assert_eq!(fine.problem(), None);
        for (break_it, words) in table {
            let mut device = Device::new("d", false);
            break_it(&mut device);
            let problem = device.problem().unwrap_or_default();
            assert!(
                problem.contains(words),
                "{problem:?} does not say {words:?}"
            );
        }
    }
}
