//! `instances.akri.sh`, field-compatible with Akri. Fields that Akri lacks are below `spec.leafhost` and `status`.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use leafhost_core::attribute;
use leafhost_core::instance::{MAX_HOLDER, MAX_HOLDERS, MAX_USES};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};

/// The device.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema, CustomResource)]
#[kube(
    group = "akri.sh",
    version = "v0",
    kind = "Instance",
    namespaced,
    shortname = "akrii",
    category = "all",
    status = "InstanceStatus",
    doc = "One discovered device. Agents write it.",
    printcolumn(
        name = "Config",
        type_ = "string",
        json_path = ".spec.configurationName",
        description = "The Configuration that the device was discovered for"
    ),
    printcolumn(
        name = "Shared",
        type_ = "boolean",
        json_path = ".spec.shared",
        description = "True if many nodes see the device"
    ),
    printcolumn(
        name = "Nodes",
        type_ = "string",
        json_path = ".spec.nodes",
        description = "The nodes that see the device"
    ),
    printcolumn(
        name = "Capacity",
        type_ = "integer",
        json_path = ".spec.capacity",
        description = "Number of containers that can use the device at a time"
    ),
    printcolumn(
        name = "Used",
        type_ = "integer",
        json_path = ".status.used",
        description = "Number of used slots; .status.nodes[NODE].holders names the pods"
    ),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    ),
    printcolumn(
        name = "Device",
        type_ = "string",
        json_path = ".spec.leafhost.id",
        priority = 1,
        description = "The id of the device"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct InstanceSpec {
    /// The name of the Configuration.
    #[schemars(length(max = 253))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("cannot be changed"))]
    pub configuration_name: String,
    /// The name of the CDI device.
    #[serde(default)]
    #[schemars(length(max = 317))]
    pub cdi_name: String,
    /// Number of slots, which is the number of containers that can use the device at a time.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub capacity: i64,
    /// Environment variables for each container that gets the device.
    #[serde(default)]
    pub broker_properties: BTreeMap<String, String>,
    /// True if many nodes see the device.
    #[serde(default)]
    pub shared: bool,
    /// The nodes that see the device.
    #[serde(default)]
    #[schemars(inner(length(max = 253)))]
    #[x_kube(merge_strategy = ListMerge::Set)]
    pub nodes: Vec<String>,
    /// By slot who has it: a node; C:DEVICE:NODE if through the Configuration's resource; R:NAMESPACE:CLAIM:UID:NODE for a resource claim;
    /// P:UID:NODE for a pod that a scheduler has chosen it for; unused if empty or missing.
    #[serde(default)]
    #[schemars(schema_with = "usages")]
    #[x_kube(merge_strategy = MapMerge::Granular)]
    pub device_usage: BTreeMap<String, String>,
    /// Fields that Akri does not have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub leafhost: Option<Leafhost>,
}

/// Fields that Akri does not have.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Leafhost {
    /// The id of the device, which the hash in the name stands for.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 1024))]
    pub id: String,
    /// Attributes by which schedulers choose.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "attributes")]
    pub attributes: BTreeMap<String, serde_json::Value>,
    /// Amounts of what the device has, as quantities.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "quantities")]
    pub capacity: BTreeMap<String, String>,
    /// Identity of the piece of hardware, whichever handler found it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub physical_id: Option<String>,
    /// By slot the pod for which a scheduler has chosen it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "reserved")]
    pub reserved: BTreeMap<String, leafhost_core::instance::Reserved>,
}

/// State of the device as its nodes see it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct InstanceStatus {
    /// By node; each node writes its own.
    #[serde(default)]
    pub nodes: BTreeMap<String, NodeStatus>,
    /// Number of used slots at the last count. spec.deviceUsage decides, and the count is renewed whenever a holder changes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "super::configuration::count")]
    pub used: Option<u32>,
}

/// State of the device as one node sees it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct NodeStatus {
    /// Health of the device.
    pub health: Health,
    /// Reason why it does not work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub reason: Option<String>,
    /// Time since when the node does not see it any more, RFC 3339, until its grace has expired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    pub missing_since: Option<String>,
    /// Time of missingSince on the clock of that boot of the node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub missing_uptime: Option<Uptime>,
    /// By slot which pods of the node have it, as namespace/name.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(schema_with = "holders")]
    pub holders: BTreeMap<String, String>,
}

/// Health of a device.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
pub enum Health {
    /// The device works.
    Healthy,
    /// The device does not work.
    Unhealthy,
    /// The handler cannot tell.
    Unknown,
}

/// A moment on the clock of one boot of a node.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Uptime {
    /// The id of the boot.
    #[schemars(length(max = 64))]
    pub boot: String,
    /// Seconds since its start.
    #[schemars(range(min = 0))]
    pub seconds: i64,
}

/// Returns the schema of attributes in the form of `resource.k8s.io/v1` `DeviceAttribute`.
fn attributes(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": {
                "string": {"type": "string", "maxLength": attribute::MAX_VALUE},
                "int": {"type": "integer", "format": "int64"},
                "bool": {"type": "boolean"},
                "version": {"type": "string", "maxLength": attribute::MAX_VALUE},
            },
            "minProperties": 1,
            "maxProperties": 1,
        },
        "maxProperties": attribute::MAX_COUNT,
    })
}

fn quantities(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": attribute::MAX_VALUE},
        "maxProperties": attribute::MAX_COUNT,
    })
}

/// Returns the schema of usages; the longest is `R:`, the namespace, name and uid of a claim, and a node.
fn usages(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "additionalProperties": {"type": "string", "maxLength": 2 + 63 + 1 + 253 + 1 + 36 + 1 + 253},
    })
}

/// Returns the schema of reservations with the bounds of [`leafhost_core::instance`]: a pod for each slot, and the containers that use it.
fn reserved(_: &mut SchemaGenerator) -> Schema {
    let number = json_schema!({"type": "integer", "minimum": 0, "maximum": 1_000});
    let name = json_schema!({"type": "string", "maxLength": 2 * 63 + 1});
    json_schema!({
        "type": "object",
        "maxProperties": MAX_HOLDERS,
        "additionalProperties": {
            "type": "object",
            "properties": {
                "pod": {"type": "string", "maxLength": MAX_HOLDER},
                "places": {"type": "array", "maxItems": MAX_USES, "items": number},
                "uses": {
                    "type": "array",
                    "maxItems": MAX_USES,
                    "items": {
                        "type": "object",
                        "properties": {"container": name, "place": number, "number": number, "of": number, "request": name},
                        "required": ["container", "place", "number", "of", "request"],
                    },
                },
            },
            "required": ["pod"],
        },
    })
}

/// Returns the schema of holders with the bounds of [`leafhost_core::instance`]: a namespace and a name for each slot.
fn holders(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object",
        "maxProperties": MAX_HOLDERS,
        "additionalProperties": {"type": "string", "maxLength": MAX_HOLDER},
    })
}

fn one() -> i64 {
    1
}
