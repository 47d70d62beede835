//! The port for what users see of Configurations: what agents report of them, and the status and Events that say so.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::configuration::Backend;
use crate::names::ConfigurationKey;
use crate::node_report::{ObjectName, ReportedHandler};

/// All Configurations of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationStates {
    /// Whether they have been read once.
    pub complete: bool,
    /// By name.
    pub configurations: BTreeMap<ConfigurationKey, Arc<ConfigurationState>>,
}

impl ConfigurationStates {
    /// Returns those whose devices the scheduler gives, without those that are being deleted.
    pub fn dra(&self) -> impl Iterator<Item = (&ConfigurationKey, &ConfigurationState)> {
        let all = self.configurations.iter();
        let all = all.map(|(key, state)| (key, &**state));
        all.filter(|(_, state)| state.backend == Backend::Dra && !state.is_deleting)
    }

    /// Tells that there are such.
    pub fn has_dra(&self) -> bool {
        self.dra().next().is_some()
    }
}

/// What the controller knows of a Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationState {
    /// What identifies this object among all that ever had the name.
    pub uid: String,
    /// The version of the object.
    pub resource_version: String,
    /// The version of its spec.
    pub generation: i64,
    /// When it was created.
    pub created: Option<Timestamp>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// The handler that it names.
    pub handler: String,
    /// What gives its devices to pods.
    pub backend: Backend,
    /// True if pods are evicted whose device does not work.
    pub evicts: bool,
    /// What is shown of it now, if it can be read.
    pub status: Option<ConfigurationStatus>,
}

/// What the agents report.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportSet {
    /// Whether the reports have been read once.
    pub complete: bool,
    /// By node and handler.
    pub handlers: BTreeMap<(String, String), Arc<ReportedHandler>>,
}

/// What is shown of a Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStatus {
    /// The version of the spec that this is about.
    pub observed_generation: i64,
    /// The nodes on which it works, of those that report on it: `2/3`.
    pub ready: String,
    /// The nodes that report on it.
    pub nodes: usize,
    /// Those on which it works.
    pub ready_nodes: usize,
    /// The Instances that at least one node sees which is Ready.
    pub devices: usize,
    /// What is known of it.
    pub conditions: Vec<Condition>,
}

/// A condition in the form of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// What it is about.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// Whether it is so.
    pub status: Truth,
    /// One word for the message.
    pub reason: String,
    /// Where and why, with the remedy.
    pub message: String,
    /// The version of the spec that it is about.
    pub observed_generation: i64,
    /// When its status changed.
    pub last_transition_time: Timestamp,
}

/// What a condition is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionType {
    /// Nodes have the handler that it names.
    HandlerAvailable,
    /// What it says can be used.
    DetailsValid,
    /// The handler finds its devices.
    Discovering,
    /// Another namespace has the name, or that of one of its Instances.
    NameTaken,
    /// The handler saw things that are no devices, or the agent denied it some. Shown only where it is so.
    DevicesLeftOut,
    /// There is a DeviceClass for its devices. Shown only where the scheduler gives them.
    DeviceClassMade,
    /// Nodes do not offer its devices to the scheduler. Shown only where it is so.
    DraUnavailable,
    /// Its brokers and services are as it says. Shown only where they are not.
    BrokersMade,
}

/// Whether something is so.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Truth {
    True,
    False,
    Unknown,
}

/// An Event: a problem of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The object.
    pub regarding: Regarding,
    /// One word for the message.
    pub reason: String,
    /// Where and why, with the remedy.
    pub message: String,
}

/// The object of an Event.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regarding {
    /// A Configuration and its uid.
    Configuration(ConfigurationKey, String),
    /// A ConfigMap with handlers.
    ConfigMap(ObjectName),
}

impl Regarding {
    /// The object's namespace.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Configuration(key, _) => key.namespace(),
            Self::ConfigMap(object) => &object.namespace,
        }
    }
}

/// Why a write was not made, or may not have been.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The object has changed meanwhile, or is gone.
    #[error("it was changed meanwhile")]
    Outdated,
    /// It is refused until somebody changes the rules.
    #[error("{0}")]
    Denied(String),
    /// No answer came, or the API server is busy.
    #[error("{message}")]
    NoAnswer {
        /// What happened.
        message: String,
        /// When the API server wants to be asked again, where it says so.
        retry_after: Option<Duration>,
    },
}

/// Where the state of Configurations is read and shown.
#[async_trait]
pub trait StatusStore: Send + Sync {
    /// The Configurations.
    fn configurations(&self) -> watch::Receiver<Arc<ConfigurationStates>>;
    /// What the agents of all nodes report.
    fn reports(&self) -> watch::Receiver<Arc<ReportSet>>;
    /// Shows `status` of the Configuration, if the object still is as it was seen.
    async fn show(
        &self,
        key: &ConfigurationKey,
        seen: &ConfigurationState,
        status: &ConfigurationStatus,
    ) -> Result<(), WriteError>;
    /// Makes an Event. If one of the object has the reason already and is at most six minutes old, that one counts one more.
    async fn publish(&self, event: &Event) -> Result<(), WriteError>;
}
