//! `configurations.akri.sh`, field-compatible with Akri: accepts every object that Akri can use, and refuses objects that neither can use.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// What is wanted.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema, CustomResource)]
#[kube(
    group = "akri.sh",
    version = "v0",
    kind = "Configuration",
    namespaced,
    shortname = "akric",
    category = "all",
    status = "ConfigurationStatus",
    doc = "Which devices are wanted, and how many slots each of them gets.",
    // Leaves room for `-` and the longest hash in the names of its Instances.
    validation = Rule::new("size(self.metadata.name) <= 236")
        .message("metadata.name must have at most 236 characters: the names of Instances begin with it"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".spec.capacity",
        description = "How many slots each Instance gets"),
    printcolumn(name = "Handler", type_ = "string", json_path = ".spec.discoveryHandler.name",
        description = "The discovery handler that finds the devices"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready",
        description = "The nodes on which it works, of those that report on it"),
    printcolumn(name = "Devices", type_ = "integer", json_path = ".status.devices",
        description = "How many devices were found"),
    printcolumn(name = "Allocation", type_ = "string", json_path = ".metadata.annotations.leafhost\\.dev/allocation",
        description = "Who gives the devices to pods, where it is not the kubelet's device plugins"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationSpec {
    /// Which discovery handler finds the devices, and what it is told.
    pub discovery_handler: DiscoveryHandlerInfo,
    /// How many slots each Instance gets: how many containers can use a device at a time. Agents use 1 to 1000.
    #[serde(default = "one")]
    #[schemars(range(min = 0))]
    pub capacity: i64,
    /// The pod or job to start for each Instance: exactly one of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub broker_spec: Option<BrokerSpec>,
    /// The service for each Instance.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "object")]
    pub instance_service_spec: Option<Value>,
    /// The service for all Instances of the Configuration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "object")]
    pub configuration_service_spec: Option<Value>,
    /// Environment variables for each container that gets a device. They win over the device's own.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub broker_properties: BTreeMap<String, String>,
}

/// Which discovery handler finds the devices, and what it is told.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerInfo {
    /// The name of the handler, such as udev, onvif, opcua or debugEcho. Case counts.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// What to look for: text for the handler, YAML by custom. At most 256 KiB.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    #[schemars(length(max = 262_144))]
    pub discovery_details: String,
    /// Values for the handler, such as credentials.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1000))]
    pub discovery_properties: Option<Vec<DiscoveryProperty>>,
}

/// A value for the handler: given here, or named. Neither is an empty value.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("!(has(self.value) && has(self.valueFrom))")
    .message("must have one of value and valueFrom, not both"))]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryProperty {
    /// Letters, digits and _, not beginning with a digit.
    #[schemars(regex(pattern = "^[_A-Za-z][_A-Za-z0-9]*$"))]
    pub name: String,
    /// The value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Where the value is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueFrom>,
}

/// Where a value is: exactly one of secretKeyRef and configMapKeyRef.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.secretKeyRef) != has(self.configMapKeyRef)")
    .message("must have exactly one of secretKeyRef and configMapKeyRef"))]
#[serde(rename_all = "camelCase")]
pub struct ValueFrom {
    /// A key of a Secret.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    /// A key of a ConfigMap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// A key of a Secret or ConfigMap.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct KeyRef {
    /// The name of the Secret or ConfigMap.
    #[schemars(length(min = 1, max = 253))]
    pub name: String,
    /// Its namespace: by default that of the Configuration; another one only if the agents are allowed to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
    /// The key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// Whether it may be missing; then the handler does not get the property.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub optional: Option<bool>,
}

/// The pod or job to start for each Instance.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema)]
#[x_kube(validation = Rule::new("has(self.brokerPodSpec) != has(self.brokerJobSpec)")
    .message("must have exactly one of brokerPodSpec and brokerJobSpec"))]
#[serde(rename_all = "camelCase")]
pub struct BrokerSpec {
    /// A PodSpec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "object")]
    pub broker_pod_spec: Option<Value>,
    /// A JobSpec.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(schema_with = "object")]
    pub broker_job_spec: Option<Value>,
}

/// What the controller says of the Configuration.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStatus {
    /// The version of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// The nodes on which it works, of those that report on it, such as 2/3.
    #[serde(default)]
    pub ready: String,
    /// How many nodes report on it.
    #[serde(default)]
    #[schemars(schema_with = "count")]
    pub nodes: u32,
    /// On how many of them it works.
    #[serde(default)]
    #[schemars(schema_with = "count")]
    pub ready_nodes: u32,
    /// How many Instances at least one node sees which is Ready.
    #[serde(default)]
    #[schemars(schema_with = "count")]
    pub devices: u32,
    /// What is known of it: HandlerAvailable, DetailsValid, Discovering, NameTaken, DevicesLeftOut, BrokersMade.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A condition.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[schemars(length(max = 316))]
    pub r#type: String,
    /// True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// One word for the message.
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Where and why, with the remedy.
    #[schemars(length(max = 32_768))]
    pub message: String,
    /// The version of the spec that it is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// When its status changed.
    #[schemars(extend("format" = "date-time"))]
    pub last_transition_time: String,
}

/// Returns the schema of a Kubernetes object that is stored unchecked: with its full schema the definition would be too large for an
/// annotation.
fn object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "object", "nullable": true, "x-kubernetes-preserve-unknown-fields": true})
}

/// Returns the schema of a count. The API server warns of the format `uint32`, which it does not know.
pub(super) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "minimum": 0})
}

fn one() -> i64 {
    1
}
