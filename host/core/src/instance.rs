//! Instances: one object per discovered device (`akri.sh/v0`, field-compatible with Akri, additive fields in
//! `leafhost`).

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};

use crate::attribute::{Attributes, Capacities};
use crate::device::{DeviceKey, Health};
use crate::lenient;
use crate::names::ConfigurationKey;
use crate::slot::DeviceUsage;

mod edit;
mod reserved;

pub use edit::{Edit, Outdated};
pub use reserved::{MAX_USES, Reserved, Use};

/// Label that names the node of a local Instance.
pub const NODE_LABEL: &str = "leafhost.dev/node";
/// Label of a shared Instance, `true`.
pub const SHARED_LABEL: &str = "leafhost.dev/shared";
/// Label that names the Configuration of a shared Instance.
pub const CONFIGURATION_LABEL: &str = "leafhost.dev/configuration";

/// Annotation with the generation of the Configuration from which the common fields were written.
pub const GENERATION_ANNOTATION: &str = "leafhost.dev/generation";
/// Label that is present after an odd number of edits of the owner, the generation or the capacity. Admission policies
/// recognize such writes by it.
pub const ODD_EDIT_LABEL: &str = "leafhost.dev/odd-edit";

/// Instance object.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Instance {
    /// Always `akri.sh/v0`.
    pub api_version: String,
    /// Always `Instance`.
    pub kind: String,
    /// Name, uid, labels, owner.
    pub metadata: InstanceMetadata,
    /// Device and its slots.
    pub spec: InstanceSpec,
    /// View of the device from each node.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "InstanceStatus::is_empty"
    )]
    pub status: InstanceStatus,
}

/// Fields of `ObjectMeta` that Leafhost uses.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceMetadata {
    /// Name: `<configuration>-<hash>`.
    pub name: String,
    /// Namespace of the Configuration.
    pub namespace: String,
    /// Uid, set by the store at creation; never changes.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub uid: String,
    /// Resource version, set by the store at every write.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub resource_version: String,
    /// Time of creation, set by the store, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub creation_timestamp: Option<String>,
    /// Time of the deletion request, set by the API server, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deletion_timestamp: Option<String>,
    /// Labels of the object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Annotations of the object.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub annotations: BTreeMap<String, String>,
    /// Owner reference to the Configuration.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owner_references: Vec<OwnerReference>,
}

/// Owner reference to the Configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct OwnerReference {
    /// Always `akri.sh/v0`.
    pub api_version: String,
    /// Always `Configuration`.
    pub kind: String,
    /// Name of the Configuration.
    pub name: String,
    /// Uid of the Configuration.
    pub uid: String,
    /// Always `true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub controller: Option<bool>,
}

/// Device and its slots. If another program has written a value of the wrong type, [`lenient`] defines how it is read;
/// all other fields stay readable.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// Name of the Configuration.
    pub configuration_name: String,
    /// CDI name: `akri.sh/<configuration>=<hash>`.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub cdi_name: String,
    /// Number of slots.
    #[serde(default = "one", deserialize_with = "lenient::count")]
    pub capacity: u32,
    /// Properties of the device, overlaid by those of the Configuration.
    #[serde(default, deserialize_with = "lenient::texts")]
    pub broker_properties: BTreeMap<String, String>,
    /// True if many nodes can see the device.
    #[serde(default, deserialize_with = "lenient::or_default")]
    pub shared: bool,
    /// Nodes that see the device, each once.
    #[serde(default, deserialize_with = "lenient::list")]
    pub nodes: Vec<String>,
    /// Holder of each slot by slot id, see [`crate::slot::DeviceUsage`]; a slot without a key is free.
    #[serde(default, deserialize_with = "lenient::texts")]
    pub device_usage: BTreeMap<String, String>,
    /// Fields that Akri does not have.
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
    /// Id of the device, from which the hash in the name is computed.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub id: String,
    /// Attributes by which schedulers select devices.
    #[serde(
        default,
        deserialize_with = "lenient::entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub attributes: Attributes,
    /// Amounts that the device provides.
    #[serde(
        default,
        deserialize_with = "lenient::entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub capacity: Capacities,
    /// Id of the piece of hardware.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub physical_id: Option<String>,
    /// Pod for which a scheduler has reserved a slot, by slot id. The scheduler writes the entry with the slot; the
    /// writer that frees the slot removes it.
    #[serde(
        default,
        deserialize_with = "lenient::entries",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub reserved: BTreeMap<String, Reserved>,
}

impl Leafhost {
    /// Returns true if both describe the device alike, ignoring `reserved`.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.id == other.id
            && self.attributes == other.attributes
            && self.capacity == other.capacity
            && self.physical_id == other.physical_id
    }
}

/// View of the device from the nodes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// Status by node; each node writes only its own entry.
    #[serde(default, deserialize_with = "node_statuses")]
    pub nodes: BTreeMap<String, NodeStatus>,
    /// Number of used slots at the last count, if counted at all. For display only; no decision depends on it.
    #[serde(
        default,
        deserialize_with = "lenient::or_default",
        skip_serializing_if = "Option::is_none"
    )]
    pub used: Option<u32>,
}

impl InstanceStatus {
    /// Returns true if the status has no content.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty() && self.used.is_none()
    }
}

/// Maximum length of the reason of an unhealthy device, in bytes: the object has one per node.
pub const MAX_REASON: usize = 1024;

/// Maximum number of slots of a node whose holders are shown.
pub const MAX_HOLDERS: usize = 1_000;
/// Maximum length of a holder, in bytes: a namespace and the name of a pod.
pub const MAX_HOLDER: usize = 63 + 1 + 253;

/// View of the device from one node. Has no timestamp of the last check, which would cause a write per check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Health of the device.
    #[serde(flatten)]
    pub health: Health,
    /// Time since which the device is missing from complete answers, RFC 3339, while its grace period runs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_since: Option<String>,
    /// Time of `missing_since` on the boot clock, which no correction of the wall clock changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_uptime: Option<Uptime>,
    /// Pods of the node seen to hold the device, `namespace/name`, by slot id.
    #[serde(
        default,
        deserialize_with = "lenient::texts",
        skip_serializing_if = "BTreeMap::is_empty"
    )]
    pub holders: BTreeMap<String, String>,
    /// True if this value replaces an entry that cannot be parsed, so that it differs from every written one.
    #[serde(skip)]
    pub is_unreadable: bool,
}

impl NodeStatus {
    /// Creates a status with this health and nothing else.
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

/// Reads the entries of all nodes. An entry that cannot be parsed becomes `Unknown` and does not hide the others.
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

/// Time on the clock of one boot of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Uptime {
    /// Boot id of the kernel: 32 hex digits.
    pub boot: String,
    /// Seconds since the boot.
    pub seconds: u64,
}

fn one() -> u32 {
    1
}

impl Instance {
    /// Returns the namespace and name.
    pub fn key(&self) -> InstanceKey {
        InstanceKey::new(&self.metadata.namespace, &self.metadata.name)
    }

    /// Returns the key of its Configuration, if both names are valid.
    pub fn configuration(&self) -> Option<ConfigurationKey> {
        ConfigurationKey::new(&self.metadata.namespace, &self.spec.configuration_name).ok()
    }

    /// Returns the key of the device, if an agent of Leafhost wrote the object.
    pub fn device_key(&self) -> Option<DeviceKey> {
        Some(DeviceKey {
            id: self.device_id()?.to_owned(),
            shared: self.spec.shared,
        })
    }

    /// Returns the id of the device, if an agent of Leafhost wrote the object.
    pub fn device_id(&self) -> Option<&str> {
        self.spec
            .leafhost
            .as_ref()
            .map(|leafhost| leafhost.id.as_str())
            .filter(|id| !id.is_empty())
    }

    /// Returns the generation of the Configuration from which the common fields were written, if known.
    pub fn generation(&self) -> Option<i64> {
        let text = self.metadata.annotations.get(GENERATION_ANNOTATION)?;
        text.parse().ok()
    }

    /// Returns true if the node sees the device.
    pub fn is_seen_by(&self, node: &str) -> bool {
        self.spec.nodes.iter().any(|seen| seen == node)
    }

    /// Returns true if the node sees the device or has a slot of it.
    pub fn concerns(&self, node: &str) -> bool {
        let mut usages = self.spec.device_usage.values();
        self.is_seen_by(node) || usages.any(|usage| is_usage_of(node, usage))
    }

    /// Returns the object reduced to what concerns this node; a change of the rest, such as another node's slot, does
    /// not alter it.
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

    /// Returns the number of used slots.
    pub fn used(&self) -> u32 {
        let usages = self.spec.device_usage.values();
        let used = usages.filter(|usage| !usage.is_empty()).count();
        u32::try_from(used).unwrap_or(u32::MAX)
    }

    /// Returns the value of `spec.deviceUsage` for a slot; empty if the slot is free.
    pub fn usage(&self, slot: &str) -> &str {
        self.spec.device_usage.get(slot).map_or("", String::as_str)
    }

    /// Returns the reservation of a slot by a scheduler.
    pub fn reserved(&self, slot: &str) -> Option<&Reserved> {
        self.spec.leafhost.as_ref()?.reserved.get(slot)
    }

    /// Returns the hash at the end of the name.
    pub fn hash(&self) -> Option<&str> {
        self.metadata
            .name
            .strip_prefix(&self.spec.configuration_name)?
            .strip_prefix('-')
    }
}

/// Namespace and name of an Instance.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InstanceKey {
    /// Namespace of the Instance.
    pub namespace: String,
    /// Name of the Instance.
    pub name: String,
}

impl InstanceKey {
    /// Creates a key.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self {
            namespace: namespace.into(),
            name: name.into(),
        }
    }
}

impl std::fmt::Display for InstanceKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Slots seen to be held by containers, by Instance and slot id. An Instance is created with these slots already set.
pub type HeldSlots = BTreeMap<InstanceKey, BTreeMap<String, DeviceUsage>>;

/// Returns true if a value of `deviceUsage` names the node.
fn is_usage_of(node: &str, usage: &str) -> bool {
    !usage.is_empty() && usage.rsplit(':').next() == Some(node)
}

#[cfg(test)]
mod tests;
