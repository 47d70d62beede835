//! Port of the user-visible state of Configurations: the reports of agents, and the status and Events derived from
//! them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::configuration::Backend;
use crate::names::ConfigurationKey;
use crate::node_report::{ObjectName, ReportedHandler};

/// All Configurations of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationStates {
    /// True once the Configurations have been listed.
    pub complete: bool,
    /// Configurations by name.
    pub configurations: BTreeMap<ConfigurationKey, Arc<ConfigurationState>>,
}

impl ConfigurationStates {
    /// Returns the Configurations whose devices the scheduler allocates, without those that are being deleted.
    pub fn dra(&self) -> impl Iterator<Item = (&ConfigurationKey, &ConfigurationState)> {
        let all = self.configurations.iter();
        let all = all.map(|(key, state)| (key, &**state));
        all.filter(|(_, state)| state.backend == Backend::Dra && !state.is_deleting)
    }

    /// Returns true if [`Self::dra`] has any.
    pub fn has_dra(&self) -> bool {
        self.dra().next().is_some()
    }
}

/// State of a Configuration as the controller needs it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ConfigurationState {
    /// Uid of the object: distinguishes it from all others that ever had the name.
    pub uid: String,
    /// Resource version of the object.
    pub resource_version: String,
    /// Generation of the spec.
    pub generation: i64,
    /// Time of creation.
    pub created: Option<Timestamp>,
    /// True if the object is being deleted.
    pub is_deleting: bool,
    /// Name of its handler.
    pub handler: String,
    /// Backend that allocates its devices to pods.
    pub backend: Backend,
    /// True if pods are evicted when their device does not work.
    pub evicts: bool,
    /// True if pods whose device is gone are evicted by the controller.
    pub restarts_pods: bool,
    /// Current status of the object, if it can be parsed.
    pub status: Option<ConfigurationStatus>,
}

/// Reports of the agents.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReportSet {
    /// True once the reports have been listed.
    pub complete: bool,
    /// Reports by node and handler.
    pub handlers: BTreeMap<(String, String), Arc<ReportedHandler>>,
}

/// Status of a Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ConfigurationStatus {
    /// Generation of the spec that the status describes.
    pub observed_generation: i64,
    /// Number of ready nodes out of those that report on the Configuration: `2/3`.
    pub ready: String,
    /// Number of nodes that report on the Configuration.
    pub nodes: usize,
    /// Number of those nodes on which the Configuration works.
    pub ready_nodes: usize,
    /// Number of Instances that at least one Ready node sees.
    pub devices: usize,
    /// Conditions of the Configuration.
    pub conditions: Vec<Condition>,
}

/// Condition in the format of Kubernetes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Type of the condition.
    #[serde(rename = "type")]
    pub kind: ConditionType,
    /// Status of the condition.
    pub status: Truth,
    /// Reason in one word.
    pub reason: String,
    /// Description with the nodes, the cause and the remedy.
    pub message: String,
    /// Generation of the spec that the condition describes.
    pub observed_generation: i64,
    /// Time of the last change of `status`.
    pub last_transition_time: Timestamp,
}

/// Type of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum ConditionType {
    /// Nodes have the handler that the Configuration names.
    HandlerAvailable,
    /// The Configuration is valid.
    DetailsValid,
    /// The handler finds devices.
    Discovering,
    /// Another namespace owns the name, or the name of one of its Instances.
    NameTaken,
    /// The handler skipped things that it saw, or the agent denied devices or requests of it. Shown only if true.
    DevicesLeftOut,
    /// A DeviceClass exists for its devices. Shown only if the scheduler allocates them.
    DeviceClassMade,
    /// Nodes do not offer its devices to the scheduler. Shown only if true.
    DraUnavailable,
    /// Its brokers and services match the spec. Shown only if false.
    BrokersMade,
    /// The controller may evict pods whose device is gone, as an annotation asks. Shown only if false.
    PodsRestarted,
    /// Type of another version of the controller. Never written.
    #[serde(other)]
    Other,
}

/// Status of a condition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Truth {
    True,
    False,
    Unknown,
}

/// Event about a problem of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Object with the problem.
    pub regarding: Regarding,
    /// Reason in one word.
    pub reason: String,
    /// Description with the nodes, the cause and the remedy.
    pub message: String,
}

/// Object that an Event regards.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Regarding {
    /// Configuration with its uid.
    Configuration(ConfigurationKey, String),
    /// ConfigMap with handlers.
    ConfigMap(ObjectName),
    /// Pod whose device is gone.
    Pod(ObjectName),
}

impl Regarding {
    /// Returns the namespace of the object.
    pub fn namespace(&self) -> &str {
        match self {
            Self::Configuration(key, _) => key.namespace(),
            Self::ConfigMap(object) | Self::Pod(object) => &object.namespace,
        }
    }
}

/// Reason why a write failed or may have failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum WriteError {
    /// The object was changed or deleted since it was read.
    #[error("it has changed since it was read")]
    Outdated,
    /// The name belongs to an object of another owner.
    #[error("the name is taken")]
    Taken,
    /// Rejected by the API server's rules; retrying does not help until they change.
    #[error("{0}")]
    Denied(String),
    /// No answer arrived, or the API server is busy.
    #[error("{message}")]
    NoAnswer {
        /// Description of the error.
        message: String,
        /// Delay before the next attempt, if the API server asks for one.
        retry_after: Option<Duration>,
    },
}

/// Store that publishes the state of Configurations.
#[async_trait]
pub trait StatusStore: Send + Sync {
    /// Writes `status` of a Configuration if the object still is as in `seen`.
    async fn show(
        &self,
        key: &ConfigurationKey,
        seen: &ConfigurationState,
        status: &ConfigurationStatus,
    ) -> Result<(), WriteError>;
    /// Creates an Event. If the object has one with the same reason that is at most six minutes old, raises its count
    /// instead.
    async fn publish(&self, event: &Event) -> Result<(), WriteError>;
}
