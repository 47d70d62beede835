//! `discoveryhandlers.leafhost.dev`: the state of a discovery handler on a node. Agents write these objects, people read them.

use kube::CustomResource;
use leafhost_core::node_report::{HandlerPhase, ReportedConfiguration, ReportedSource};
use serde::{Deserialize, Serialize};

/// One discovery handler on one node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "leafhost.dev",
    version = "v1alpha1",
    kind = "DiscoveryHandler",
    status = "DiscoveryHandlerStatus",
    derive = "PartialEq",
    schema = "disabled"
)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerSpec {
    /// Name of the node.
    pub node: String,
    /// The handler's own name, as in spec.discoveryHandler.name of a Configuration.
    pub handler: String,
}

/// State of the handler as the node's agent reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerStatus {
    /// Waiting: no Configuration names the handler. Active: at least one Configuration gets answers. Offline: none does.
    pub phase: HandlerPhase,
    /// Time since which the handler has this phase, in RFC 3339 format.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Number of devices that the handler finds for all Configurations together.
    #[serde(default)]
    pub devices: u32,
    /// Number of objects that the handler saw and did not take, for all Configurations together.
    #[serde(default)]
    pub skipped: u32,
    /// Number of devices and requests of the handler that the agent denied, for all Configurations together.
    #[serde(default)]
    pub denied: u32,
    /// First problem of all sources and Configurations. If there is none, the first denied entry, or the first skipped entry of a
    /// Configuration without devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// Components and external handlers that have the handler's name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceReport>,
    /// Configurations that name the handler.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub configurations: Vec<ConfigurationReport>,
}

/// Kind of a source.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum SourceKind {
    /// A file that the agent loads.
    #[default]
    Component,
    /// A process elsewhere that has registered.
    External,
}

/// One component, or one external handler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceReport {
    /// Name of the file, such as `udev.wasm`; for an external handler, its name and its endpoint.
    pub name: String,
    /// Kind of the source.
    #[serde(default)]
    pub kind: SourceKind,
    /// State of the source.
    #[serde(flatten)]
    pub source: ReportedSource,
}

/// One Configuration that names the handler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConfigurationReport {
    /// Namespace of the Configuration.
    pub namespace: String,
    /// Name of the Configuration.
    pub name: String,
    /// Devices that the handler finds for the Configuration, and problems.
    #[serde(flatten)]
    pub configuration: ReportedConfiguration,
}
