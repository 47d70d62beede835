//! `configurations.akri.sh`, field-compatible with Akri: accepts every object that Akri can use, and refuses objects that neither can use.

use std::collections::BTreeMap;

use kube::{CustomResource, KubeSchema};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Desired devices and brokers.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema, CustomResource)]
#[kube(
    group = "akri.sh",
    version = "v0",
    kind = "Configuration",
    namespaced,
    shortname = "akric",
    category = "all",
    status = "ConfigurationStatus",
    doc = "Devices to discover, and the number of slots of each.",
    // Leaves room for `-` and the longest hash in the names of its Instances.
    validation = Rule::new("size(self.metadata.name) <= 236")
        .message("metadata.name must have at most 236 characters: the names of Instances begin with it"),
    printcolumn(name = "Capacity", type_ = "string", json_path = ".spec.capacity",
        description = "Number of slots of each Instance"),
    printcolumn(name = "Handler", type_ = "string", json_path = ".spec.discoveryHandler.name",
        description = "The discovery handler that finds the devices"),
    printcolumn(name = "Ready", type_ = "string", json_path = ".status.ready",
        description = "The nodes on which it works, of those that report on it"),
    printcolumn(name = "Devices", type_ = "integer", json_path = ".status.devices",
        description = "Number of devices found"),
    printcolumn(name = "Allocation", type_ = "string", json_path = ".metadata.annotations.leafhost\\.dev/allocation",
        description = "Backend that gives the devices to pods, if not device plugins"),
    printcolumn(name = "Age", type_ = "date", json_path = ".metadata.creationTimestamp")
)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationSpec {
    /// Discovery handler that finds the devices, and its parameters.
    pub discovery_handler: DiscoveryHandlerInfo,
    /// Number of slots of each Instance, which is the number of containers that can use a device at a time. Agents use 1 to 1000.
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

/// Discovery handler that finds the devices, and its parameters.
#[derive(Debug, Clone, Serialize, Deserialize, KubeSchema)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerInfo {
    /// The name of the handler, such as udev, onvif, opcua or debugEcho. Case counts.
    #[schemars(length(min = 1, max = 63))]
    pub name: String,
    /// Details for the handler, as text, YAML by custom. At most 256 KiB.
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
    /// Source of the value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value_from: Option<ValueFrom>,
}

/// Source of a value: exactly one of secretKeyRef and configMapKeyRef.
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
    /// Namespace, by default that of the Configuration; another one only if the agents are allowed to read it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 63))]
    pub namespace: Option<String>,
    /// The key.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
    /// True if the key may be missing; then the handler does not get the property.
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

/// State of the Configuration as the controller reports it.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStatus {
    /// The version of the spec that this is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// The nodes on which it works, of those that report on it, such as 2/3.
    #[serde(default)]
    pub ready: String,
    /// Number of nodes that report on it.
    #[serde(default)]
    #[schemars(schema_with = "count")]
    pub nodes: u32,
    /// Number of those nodes on which it works.
    #[serde(default)]
    #[schemars(schema_with = "count")]
    pub ready_nodes: u32,
    /// Number of Instances that at least one Ready node sees.
    #[serde(default)]
    #[schemars(schema_with = "count")]
    pub devices: u32,
    /// Conditions: HandlerAvailable, DetailsValid, Discovering, NameTaken, DevicesLeftOut, BrokersMade, DeviceClassMade, DraUnavailable.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
}

/// A condition.
#[derive(Debug, Clone, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[schemars(length(max = 316))]
    pub r#type: String,
    /// True, False or Unknown.
    #[schemars(extend("enum" = ["True", "False", "Unknown"]))]
    pub status: String,
    /// One word for the message.
    #[schemars(length(max = 1024))]
    pub reason: String,
    /// Places and cause of the problem, with the remedy.
    #[schemars(length(max = 32_768))]
    pub message: String,
    /// The version of the spec that it is about.
    #[serde(default)]
    pub observed_generation: i64,
    /// Time of the last change of the status.
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
