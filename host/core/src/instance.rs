//! The Instance: one discovered device (`akri.sh/v0`, field-compatible with Akri, additive fields below `leafhost`).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::attribute::{Attributes, Capacities};
use crate::device::Health;
use crate::lenient;
use crate::slot::DeviceUsage;

mod edit;
mod reserved;

pub use edit::{Edit, Outdated};
pub use reserved::{MAX_USES, Reserved, Use};

/// The label that names the node of a local Instance.
pub const NODE_LABEL: &str = "leafhost.dev/node";
/// The label of a shared Instance, `true`.
pub const SHARED_LABEL: &str = "leafhost.dev/shared";
/// The label that names the Configuration of a shared Instance.
pub const CONFIGURATION_LABEL: &str = "leafhost.dev/configuration";

/// The annotation that names the generation of the Configuration from which the common fields were written.
pub const GENERATION_ANNOTATION: &str = "leafhost.dev/generation";
/// A label that is there after an odd number of edits of the owner, the generation or the capacity, so that the policies see which writes
/// edit them.
pub const ODD_EDIT_LABEL: &str = "leafhost.dev/odd-edit";

/// The whole object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// `akri.sh/v0`.
    pub api_version: String,
    /// `Instance`.
    pub kind: String,
    /// Name, uid, labels, owner.
    pub metadata: InstanceMetadata,
    /// The device.
    pub spec: InstanceSpec,
    /// How it is seen from the nodes.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "InstanceStatus::is_empty"
    )]
    pub status: InstanceStatus,
}

/// The part of `ObjectMeta` that is used.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceMetadata {
    /// `<configuration>-<hash>`.
    pub name: String,
    /// That of the Configuration.
    pub namespace: String,
    /// Set by the store at creation; never changes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Set by the store at every write.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Set by the store at creation, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// Set by the API server when the object is being deleted, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Labels.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// The Configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

/// The Configuration as owner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// `akri.sh/v0`.
    pub api_version: String,
    /// `Configuration`.
    pub kind: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
    /// `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
}

/// The device. What others wrote of it that does not fit is read as [`lenient`] says: it hides nothing else.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// The Configuration's name.
    pub configuration_name: String,
    /// `akri.sh/<configuration>=<hash>`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub cdi_name: String,
    /// How many slots.
    #[serde(default = "one", deserialize_with = "lenient::count")]
    pub capacity: u32,
    /// The device's properties, overlaid by the Configuration's.
    #[serde(default, deserialize_with = "lenient::texts")]
    pub broker_properties: BTreeMap<String, String>,
    /// Visible from many nodes.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub shared: bool,
    /// The nodes that see it, each once.
    #[serde(default, deserialize_with = "lenient::list")]
    pub nodes: Vec<String>,
    /// Slot id → who has it, see [`crate::slot::DeviceUsage`]; an absent key means free.
    #[serde(default, deserialize_with = "lenient::texts")]
    pub device_usage: BTreeMap<String, String>,
    /// What Akri does not have.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Option::is_none"
    )]
    pub leafhost: Option<Leafhost>,
}

/// Additive fields of the spec.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Leafhost {
    /// The device's id: what a hash in a name stands for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// What schedulers choose by.
    #[serde(
        default,
        deserialize_with = "lenient::entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub attributes: Attributes,
    /// Amounts of what the device has.
    #[serde(
        default,
        deserialize_with = "lenient::entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub capacity: Capacities,
    /// What identifies the piece of hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_id: Option<String>,
    /// By slot the pod for which a scheduler has chosen it. A scheduler writes it with the slot, and whoever frees the slot removes it.
    #[serde(
        default,
        deserialize_with = "lenient::entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub reserved: BTreeMap<String, Reserved>,
}

impl Leafhost {
    /// Tells that the same is said of the device, whatever schedulers have reserved.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.id == other.id
            && self.attributes == other.attributes
            && self.capacity == other.capacity
            && self.physical_id == other.physical_id
    }
}

/// How the device is seen from the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// One entry a node, written by that node only.
    #[serde(default, deserialize_with = "node_statuses")]
    pub nodes: BTreeMap<String, NodeStatus>,
    /// How many slots somebody has, as it was last counted, where it is counted at all: people look at it, and no decision does.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Option::is_none"
    )]
    pub used: Option<u32>,
}

impl InstanceStatus {
    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.used.is_none()
    }
}

/// The longest reason of a device that does not work, in bytes: the object has one for each node.
pub const MAX_REASON: usize = 1024;

/// The most slots of a node whose holders are shown.
pub const MAX_HOLDERS: usize = 1_000;
/// The longest text of a holder, in bytes: a namespace and the name of a pod.
pub const MAX_HOLDER: usize = 63 + 1 + 253;

/// How one node sees the device. No timestamp of the last look: it would be a write at every look.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Whether it works.
    #[serde(flatten)]
    pub health: Health,
    /// Since when the device is missing from complete answers, RFC 3339, while its grace runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<String>,
    /// The same moment on the clock of that boot, which no correction of the wall clock changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_uptime: Option<Uptime>,
    /// By slot which pods of the node were seen to have it, `namespace/name`.
    #[serde(
        default,
        deserialize_with = "lenient::texts",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub holders: BTreeMap<String, String>,
    /// Marks that it stands for an entry that cannot be read, so that it is equal to none that is written.
    #[serde(skip)]
    pub is_unreadable: bool,
}

impl NodeStatus {
    /// An entry that says no more than that.
    pub fn new(health: Health) -> Self {
        Self {
            health,
            missing_since: None,
            missing_uptime: None,
            holders: BTreeMap::new(),
            is_unreadable: false,
        }
    }
}

/// Reads the entries of all nodes. What cannot be read of one is Unknown, and stops nobody from reading the others'.
fn node_statuses<'de, D>(deserializer: D) -> Result<BTreeMap<String, NodeStatus>, D::Error>
where
    D: Deserializer<'de>,
{
    lenient::entries_or(deserializer, || {
        Some(NodeStatus {
            is_unreadable: true,
            ..NodeStatus::new(Health::Unknown)
        })
    })
}

/// A moment on the clock of one boot of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Uptime {
    /// The kernel's id of the boot: 32 hex digits.
    pub boot: String,
    /// Seconds since it started.
    pub seconds: u64,
}

fn one() -> u32 {
    1
}

impl Instance {
    /// `namespace/name`.
    pub fn key(&self) -> InstanceKey {
        InstanceKey {
            namespace: self.metadata.namespace.clone(),
            name: self.metadata.name.clone(),
        }
    }

    /// The id of the device, where an agent of ours wrote the object.
    pub fn device_id(&self) -> Option<&str> {
        self.spec
            .leafhost
            .as_ref()
            .map(|leafhost| leafhost.id.as_str())
            .filter(|id| !id.is_empty())
    }

    /// The generation of the Configuration from which the common fields were written, where that is known.
    pub fn generation(&self) -> Option<i64> {
        let text = self.metadata.annotations.get(GENERATION_ANNOTATION)?;
        text.parse().ok()
    }

    /// Tells that the node sees the device or has a slot of it.
    pub fn concerns(&self, node: &str) -> bool {
        let mut usages = self.spec.device_usage.values();
        self.spec.nodes.iter().any(|seen| seen == node)
            || usages.any(|usage| is_usage_of(node, usage))
    }

    /// Returns what of the object is this node's matter: a change of the rest, such as another node's slot, is none of its.
    #[must_use]
    pub fn seen_from(&self, node: &str) -> Self {
        let mut seen = self.clone();
        seen.metadata.resource_version.clear();
        seen.spec.nodes.retain(|other| other == node);
        let usages = &mut seen.spec.device_usage;
        usages.retain(|_, usage| is_usage_of(node, usage));
        if let Some(leafhost) = &mut seen.spec.leafhost {
            let usages = &seen.spec.device_usage;
            leafhost
                .reserved
                .retain(|slot, _| usages.contains_key(slot));
        }
        seen.status.nodes.retain(|other, _| other == node);
        seen
    }

    /// Counts the slots that somebody has.
    pub fn used(&self) -> u32 {
        let usages = self.spec.device_usage.values();
        let used = usages.filter(|usage| !usage.is_empty()).count();
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// Returns the value of `spec.deviceUsage` for a slot; nothing is free.
    pub fn usage(&self, slot: &str) -> &str {
        self.spec.device_usage.get(slot).map_or("", String::as_str)
    }

    /// Returns what a scheduler has said of a slot.
    pub fn reserved(&self, slot: &str) -> Option<&Reserved> {
        self.spec.leafhost.as_ref()?.reserved.get(slot)
    }

    /// The hash at the end of the name.
    pub fn hash(&self) -> Option<&str> {
        self.metadata
            .name
            .strip_prefix(&self.spec.configuration_name)?
            .strip_prefix('-')
    }
}

/// `namespace/name` of an Instance.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
}

impl std::fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// The slots that containers were seen to have, by Instance and slot id. An Instance that is created starts with its own.
pub type HeldSlots = BTreeMap<InstanceKey, BTreeMap<String, DeviceUsage>>;

/// Tells that a value of `deviceUsage` names the node.
fn is_usage_of(node: &str, usage: &str) -> bool {
    !usage.is_empty() && usage.rsplit(':').next() == Some(node)
}

#[cfg(test)]
mod tests;
