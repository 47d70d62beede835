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
    /// The node.
    pub node: String,
    /// The handler's own name, as in spec.discoveryHandler.name of a Configuration.
    pub handler: String,
}

/// State of the handler as the node's agent reports it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DiscoveryHandlerStatus {
    /// Waiting: no Configuration names it. Active: at least one Configuration gets answers. Offline: none does.
    pub phase: HandlerPhase,
    /// Time since when it has this phase, RFC 3339.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Number of devices that it finds for all Configurations together.
    #[serde(default)]
    pub devices: u32,
    /// Number of objects that it saw and did not take, for all Configurations together.
    #[serde(default)]
    pub skipped: u32,
    /// Number of its devices and requests that the agent denied, for all Configurations together.
    #[serde(default)]
    pub denied: u32,
    /// The first problem of all. If there is none, what was denied first, or skipped for a Configuration without devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub problem: Option<String>,
    /// The components and external handlers that have this name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub sources: Vec<SourceReport>,
    /// The Configurations that name it.
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
    /// The file, such as udev.wasm; of an external handler its name and where it serves.
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
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Devices that the handler finds for it, and its problems.
    #[serde(flatten)]
    pub configuration: ReportedConfiguration,
}
