//! How the handlers of a node stand: what is shown of them to people who are not on the node.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::names::ConfigurationKey;

/// The most handlers of a node that are reported: who reads reports takes no more of a node.
pub const MAX_REPORTS: usize = 100;

/// All handlers of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeReport {
    /// Whether every handler was loaded and every Configuration called once. Until then an absent handler says nothing.
    pub complete: bool,
    /// By handler name.
    pub handlers: BTreeMap<String, ReportedHandler>,
}

/// A handler that a source has, or that a Configuration names.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedHandler {
    /// What it does.
    pub phase: HandlerPhase,
    /// Since when, if that is known.
    pub since: Option<Timestamp>,
    /// By source name.
    pub sources: BTreeMap<String, ReportedSource>,
    /// The Configurations that name it.
    pub configurations: BTreeMap<ConfigurationKey, ReportedConfiguration>,
}

/// What a handler does, over all its sources.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum HandlerPhase {
    /// No Configuration gets answers, since none names it.
    Waiting,
    /// At least one Configuration gets answers.
    Active,
    /// It does not serve.
    #[default]
    Offline,
}

/// A component, or a handler that serves elsewhere.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedSource {
    /// Where it serves, if it is no component.
    pub endpoint: Option<String>,
    /// The handler's own version, if it was ever loaded.
    pub version: Option<String>,
    /// The sha256 of the bytes that serve.
    pub digest: Option<String>,
    /// Grants the newest bytes need and do not have.
    pub missing_grants: Vec<String>,
    /// Why the newest bytes do not serve, or what else is wrong.
    pub problem: Option<ReportedProblem>,
    /// The object that the problem is about, or that has the component, where it is one's.
    pub object: Option<ObjectName>,
}

/// Which ConfigMap.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its uid.
    pub uid: String,
}

/// What is wrong.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedProblem {
    /// One word for it: that of [`Problem`](crate::problem::Problem), or [`HANDLER_REFUSED`].
    pub reason: String,
    /// What and the remedy.
    pub message: String,
}

/// The reason of a component that cannot be loaded.
pub const HANDLER_REFUSED: &str = "HandlerRefused";

/// A Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportedConfiguration {
    /// How many devices it has, those in grace included.
    pub devices: usize,
    /// How many things the handler saw and did not take.
    pub skipped: usize,
    /// The first of these, and why.
    pub first_skipped: Option<String>,
    /// How many devices of its answers, and how many of its requests, the agent denied.
    pub denied: usize,
    /// The first of these, and the grant that is missing.
    pub first_denied: Option<String>,
    /// The version of its spec that this is about, where it has one.
    pub generation: Option<i64>,
    /// What is wrong first of all.
    pub problem: Option<ReportedProblem>,
}
