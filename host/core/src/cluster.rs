//! Port of the controller: the cluster as seen by one process that acts for all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::brokers::ManifestSet;
use crate::instance::Instance;
use crate::names::ConfigurationKey;
use crate::ports::{Change, InstanceSet};
use crate::problem::Problem;
use crate::resource_names::{NameSet, NameStore};
use crate::scheduling::PodKey;
use crate::status_store::{ConfigurationStates, ReportSet, StatusStore, WriteError};

/// All nodes of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSet {
    /// True once the nodes have been listed. Until then an absent node may exist.
    pub complete: bool,
    /// Nodes by name.
    pub nodes: BTreeMap<String, NodeState>,
}

/// State of a node as the controller needs it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeState {
    /// True if an operator has declared the node shut down for good, by the taint `node.kubernetes.io/out-of-service`.
    pub is_out_of_service: bool,
    /// Time since which the node is not Ready.
    pub not_ready_since: Option<Timestamp>,
}

/// Labels of a node with the prefix `akri.sh/`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeLabels {
    /// Names of all labels.
    pub all: BTreeSet<String>,
    /// Names of those that the controller has set.
    pub own: BTreeSet<String>,
}

/// Configurations whose devices the scheduler allocates, with the problem of their device class, if any. Leaves out
/// those whose class is not known yet.
pub type Classes = BTreeMap<ConfigurationKey, Result<(), Problem>>;

/// Object that is being deleted and waits for finalizers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleting {
    /// Kind of the object.
    pub kind: DeletingKind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Uid of the object: distinguishes it from all others that ever had the name.
    pub uid: String,
    /// Resource version of the object.
    pub resource_version: String,
    /// Finalizers that remain.
    pub finalizers: Vec<String>,
}

/// Kind of an object that is being deleted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum DeletingKind {
    Configuration,
    Instance,
}

impl fmt::Display for Deleting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Finalizers of Kubernetes itself that have no domain.
const OF_KUBERNETES: [&str; 2] = ["orphan", "foregroundDeletion"];

/// Returns true if a finalizer of a Configuration or Instance was set by an Akri agent: it is a node name without a
/// domain.
pub fn is_of_akri(finalizer: &str) -> bool {
    !finalizer.contains('/') && !OF_KUBERNETES.contains(&finalizer)
}

/// State of a pod that may be evicted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PodState {
    /// Uid of the pod: distinguishes it from all others that ever had the name.
    pub uid: String,
    /// Node that the pod is bound to.
    pub node: Option<String>,
    /// Time of creation.
    pub created: Option<Timestamp>,
    /// True if the pod has ended, or is being deleted.
    pub is_ending: bool,
    /// True if the pod is the mirror pod of a static pod.
    pub is_mirror: bool,
    /// True if the pod has a label of brokers, which the controller itself manages.
    pub is_broker: bool,
    /// Kind of the object that controls the pod, if any, such as `ReplicaSet`.
    pub owner: Option<String>,
}

/// Reason why a pod was not evicted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EvictionError {
    /// Not allowed at the moment, for example because of a `PodDisruptionBudget`.
    #[error("{0}")]
    NotNow(String),
    /// Failed as other writes do. [`WriteError::Outdated`] means that no pod, or another pod, has the name.
    #[error(transparent)]
    Failed(#[from] WriteError),
}

/// Watches of the cluster.
#[derive(Debug, Clone)]
pub struct ClusterViews {
    /// True while this process is the leader.
    pub leads: watch::Receiver<bool>,
    /// Nodes.
    pub nodes: watch::Receiver<Arc<NodeSet>>,
    /// Labels with the prefix `akri.sh/`, by node.
    pub node_labels: watch::Receiver<Arc<BTreeMap<String, NodeLabels>>>,
    /// Instances of all nodes.
    pub instances: watch::Receiver<Arc<InstanceSet>>,
    /// Configurations.
    pub configurations: watch::Receiver<Arc<ConfigurationStates>>,
    /// Configurations as written, for brokers.
    pub manifests: watch::Receiver<Arc<ManifestSet>>,
    /// Reports of all agents.
    pub reports: watch::Receiver<Arc<ReportSet>>,
    /// Reservations of names.
    pub names: watch::Receiver<Arc<NameSet>>,
    /// Device classes of Configurations whose devices the scheduler allocates.
    pub classes: watch::Receiver<Arc<Classes>>,
    /// Configurations and Instances that are being deleted.
    pub deleting: watch::Receiver<Vec<Deleting>>,
}

/// Access to the cluster for the controller.
#[async_trait]
pub trait Cluster: StatusStore + NameStore {
    /// Returns the watches of the cluster.
    fn views(&self) -> ClusterViews;
    /// Replaces the finalizers of an object if its resource version is still that of `object`.
    async fn set_finalizers(
        &self,
        object: &Deleting,
        finalizers: &[String],
    ) -> Result<(), WriteError>;
    /// Reads the state of a node from the API server; returns `None` if the node does not exist. The error is a description.
    async fn node(&self, name: &str) -> Result<Option<NodeState>, String>;
    /// Reads the requests of the pods of a node that have not ended: resources of `akri.sh`, claims as
    /// [`crate::slot::claim_key`], and each pod whose devices a scheduler assigns as [`crate::slot::pod_key`]. The error is a
    /// description.
    async fn requested(&self, node: &str) -> Result<BTreeSet<String>, String>;
    /// Writes a change of `base` if its resource version is still current; fails if another writer was first.
    async fn write(&self, base: &Instance, change: &Change) -> Result<(), WriteError>;
    /// Reads the state of a pod from the API server; returns `None` if the pod does not exist.
    async fn pod(&self, key: &PodKey) -> Result<Option<PodState>, EvictionError>;
    /// Evicts the pod with this uid, unless a `PodDisruptionBudget` forbids it.
    async fn evict(&self, key: &PodKey, uid: &str) -> Result<(), EvictionError>;
    /// Replaces those labels of a node that the controller has set; fails if another writer has set one of `labels`.
    async fn label_node(&self, node: &str, labels: &BTreeSet<String>) -> Result<(), WriteError>;
}
