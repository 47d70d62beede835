//! Slots: the shares of an Instance, and the holder of each.

use std::str::FromStr;

use crate::names::is_node_name;

/// Holder of a slot: a value of `Instance.spec.deviceUsage`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, strum::Display)]
pub enum DeviceUsage {
    /// No holder; equivalent to an absent key.
    #[default]
    #[strum(to_string = "")]
    Unused,
    /// Node, through the Instance's own resource.
    #[strum(transparent)]
    Node(String),
    /// Node, through the Configuration's resource and one of its virtual devices.
    #[strum(to_string = "C:{device}:{node}")]
    Configuration {
        /// Id of the virtual device: `<configuration>-<n>`, or just `n` in older objects; a DNS subdomain.
        device: String,
        /// Name of the node.
        node: String,
    },
    /// Resource claim whose pods run on the node.
    #[strum(to_string = "R:{namespace}:{name}:{uid}:{node}")]
    Claim {
        /// Namespace of the claim.
        namespace: String,
        /// Name of the claim.
        name: String,
        /// Uid of the claim.
        uid: String,
        /// Name of the node.
        node: String,
    },
    /// Pod for which a scheduler has chosen the device.
    #[strum(to_string = "P:{uid}:{node}")]
    Pod {
        /// Uid of the pod.
        uid: String,
        /// Node to which the scheduler binds the pod.
        node: String,
    },
}

/// Error for a text that is not a `deviceUsage` value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "deviceUsage value {0:?} is none of \"\", \"<node>\", \"C:<virtual device>:<node>\", \"R:<namespace>:<claim>:<uid>:<node>\", \"P:<pod uid>:<node>\""
)]
pub struct InvalidUsage(pub String);

impl DeviceUsage {
    /// Returns the usage of a slot that a scheduler has chosen for the pod with this uid.
    pub fn of_pod(uid: &str, node: &str) -> Self {
        Self::Pod {
            uid: uid.to_owned(),
            node: node.to_owned(),
        }
    }

    /// Returns the node that holds the slot.
    pub fn node(&self) -> Option<&str> {
        match self {
            Self::Unused => None,
            Self::Node(node)
            | Self::Configuration { node, .. }
            | Self::Claim { node, .. }
            | Self::Pod { node, .. } => Some(node),
        }
    }

    /// Returns the [`claim_key`] or [`pod_key`] of the holder, if it is a claim or a pod.
    pub fn consumer(&self) -> Option<String> {
        match self {
            Self::Claim {
                namespace, name, ..
            } => Some(claim_key(namespace, name)),
            Self::Pod { uid, .. } => Some(pod_key(uid)),
            _ => None,
        }
    }

    /// Returns the uid of the pod for which a scheduler has chosen the slot.
    pub fn pod(&self) -> Option<&str> {
        match self {
            Self::Pod { uid, .. } => Some(uid),
            _ => None,
        }
    }

    /// Returns true if both usages are of the same claim, even on different nodes.
    pub fn is_of_claim(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Claim { uid: own, .. }, Self::Claim { uid, .. }) => own == uid,
            _ => false,
        }
    }
}

/// Returns the key of a claim: `R:<namespace>:<name>`.
pub fn claim_key(namespace: &str, name: &str) -> String {
    format!("R:{namespace}:{name}")
}

/// Returns the key of a pod for which a scheduler chooses devices: `P:<uid>`.
pub fn pod_key(uid: &str) -> String {
    format!("P:{uid}")
}

impl FromStr for DeviceUsage {
    type Err = InvalidUsage;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Ok(Self::Unused);
        }
        match text.split(':').collect::<Vec<_>>().as_slice() {
            [node] if is_node_name(node) => Ok(Self::Node((*node).to_owned())),
            ["C", device, node] if is_node_name(device) && is_node_name(node) => {
                Ok(Self::Configuration {
                    device: (*device).to_owned(),
                    node: (*node).to_owned(),
                })
            }
            ["P", uid, node] if is_node_name(uid) && is_node_name(node) => {
                Ok(Self::of_pod(uid, node))
            }
            ["R", namespace, name, uid, node]
                if [namespace, name, uid, node]
                    .iter()
                    .all(|part| is_node_name(part)) =>
            {
                Ok(Self::Claim {
                    namespace: (*namespace).to_owned(),
                    name: (*name).to_owned(),
                    uid: (*uid).to_owned(),
                    node: (*node).to_owned(),
                })
            }
            _ => Err(InvalidUsage(text.to_owned())),
        }
    }
}

/// Returns `<instance>-<slot>`: the key in `deviceUsage` and the device id that the kubelet sees.
pub fn slot_id(instance: &str, slot: u32) -> String {
    format!("{instance}-{slot}")
}

/// Returns the slot number in a slot id; `None` if the id is not one of this Instance.
pub fn slot_number(instance: &str, id: &str) -> Option<u32> {
    let number = id.strip_prefix(instance)?.strip_prefix('-')?;
    let canonical = number == "0" || number.starts_with(|c: char| matches!(c, '1'..='9'));
    canonical.then(|| number.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_forms_akri_writes_are_read_and_written_alike() {
        for (text, usage) in [
            ("", DeviceUsage::Unused),
            ("node-a", DeviceUsage::Node("node-a".into())),
            (
                "C:cams-1:node-a",
                DeviceUsage::Configuration {
                    device: "cams-1".into(),
                    node: "node-a".into(),
                },
            ),
            (
                "C:0:node-a",
                DeviceUsage::Configuration {
                    device: "0".into(),
                    node: "node-a".into(),
                },
            ),
            (
                "R:lab:viewer:5f-1:node-a",
                DeviceUsage::Claim {
                    namespace: "lab".into(),
                    name: "viewer".into(),
                    uid: "5f-1".into(),
                    node: "node-a".into(),
                },
            ),
            (
                "P:5f-1:node-a",
                DeviceUsage::Pod {
                    uid: "5f-1".into(),
                    node: "node-a".into(),
                },
            ),
        ] {
            assert_eq!(text.parse(), Ok(usage.clone()));
            assert_eq!(usage.to_string(), text);
        }
    }

    #[test]
    fn only_ids_that_slot_id_makes_have_a_number() {
        for (id, number) in [
            ("a-1-0", Some(0)),
            ("a-1-12", Some(12)),
            ("a-1-012", None),
            ("a-1-+1", None),
            ("a-1", None),
            ("a-10", None),
            ("a-1-99999999999", None),
        ] {
            assert_eq!(slot_number("a-1", id), number, "{id}");
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "C::node",
            "C:a",
            "D:a:node",
            "a b",
            "C:a:b:c",
            "C:a:",
            "C:a\n:b",
            "C:A:b",
            "C:a ",
            "R:a:b:c",
            "R:a:b:c:d:e",
            "R:a::c:d",
            "R",
            "P:a",
            "P::a",
            "P:a:b:c",
        ] {
            assert!(text.parse::<DeviceUsage>().is_err(), "{text}");
        }
    }
}
