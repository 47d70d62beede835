//! Report on the handlers of a node, for users elsewhere in the cluster. Its parts have the form of `discoveryhandlers.leafhost.dev`.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::ConfigurationKey;

/// Maximum number of handlers in the report of a node; readers of reports accept no more.
pub const MAX_REPORTS: usize = 100;

/// Report on all handlers of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// True once the loader has tried every handler, and every loaded one was called for its Configurations or the wait for
    /// these calls is over. Until then an absent handler may exist.
    pub complete: bool,
    /// Handlers by name.
    pub handlers: BTreeMap<String, ReportedHandler>,
}

/// Handler that a source provides or a Configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedHandler {
    /// Phase over all sources.
    pub phase: HandlerPhase,
    /// Time since which the phase holds, if known.
    pub since: Option<Timestamp>,
    /// Sources by name.
    pub sources: BTreeMap<String, ReportedSource>,
    /// Configurations that name the handler.
    pub configurations: BTreeMap<ConfigurationKey, ReportedConfiguration>,
}

/// Phase of a handler: that of its most active source, in ascending order.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum HandlerPhase {
    /// Not serving.
    #[default]
    Offline,
    /// Named by no Configuration, or without an answer so far.
    Waiting,
    /// Answering for at least one Configuration.
    Active,
}

/// Source of a handler: a component, or an external handler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedSource {
    /// Endpoint, unless the source is a component.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub endpoint: Option<String>,
    /// Version of the handler, if it was ever loaded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// SHA-256 of the bytes in service.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub digest: Option<String>,
    /// Grants that the newest bytes need but lack.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub missing_grants: Vec<String>,
    /// Reason why the newest bytes are not in service, or another problem.
    #[serde(flatten)]
    pub problem: Option<ReportedProblem>,
    /// Object that the problem is about or that contains the component, if any.
    #[serde(rename = "configMap", skip_serializing_if = "Option::is_none")]
    pub object: Option<ObjectName>,
}

/// Identity of an object, such as a ConfigMap or a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ObjectName {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Uid of the object.
    pub uid: String,
}

/// Problem of a handler, source or Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ReportedProblem {
    /// Reason in one word: that of [`Problem`](crate::problem::Problem), or [`HANDLER_REFUSED`].
    pub reason: String,
    /// Description and remedy.
    #[serde(rename = "problem")]
    pub message: String,
}

/// Reason of a component that cannot be loaded.
pub const HANDLER_REFUSED: &str = "HandlerRefused";

/// Report on a Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ReportedConfiguration {
    /// Number of devices, including those in their grace period.
    pub devices: usize,
    /// Number of things that the handler saw and did not report as devices.
    pub skipped: usize,
    /// First skipped thing, and the reason.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_skipped: Option<String>,
    /// Number of devices and requests of the handler that the agent denied.
    pub denied: usize,
    /// First denied device or request, and the missing grant.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_denied: Option<String>,
    /// Generation of the spec that the report describes, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub generation: Option<i64>,
    /// Most important problem.
    #[serde(flatten)]
    pub problem: Option<ReportedProblem>,
}
