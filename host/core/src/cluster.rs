//! Port of the controller: the cluster as seen by one process that acts for all nodes.

use std::collections::{BTreeMap, BTreeSet};
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

impl std::fmt::Display for Deleting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
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

/// Failed read, which may succeed later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {what}: {why}; the controller tries again")]
pub struct ReadError {
    /// Object of the read.
    pub what: String,
    /// Answer of the API server, or the reason why there was none.
    pub why: String,
}

/// Watches of the cluster.
#[derive(Debug, Clone)]
pub struct ClusterViews {
    /// True while this process leads.
    pub leads: watch::Receiver<bool>,
    /// Nodes.
    pub nodes: watch::Receiver<Arc<NodeSet>>,
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
    /// Our objects that are being deleted.
    pub deleting: watch::Receiver<Vec<Deleting>>,
}

/// Access to the cluster for the controller.
#[async_trait]
pub trait Cluster: StatusStore + NameStore {
    /// Returns the watches of the cluster.
    fn views(&self) -> ClusterViews;
    /// Replaces the finalizers of an object if its version is still the one seen.
    async fn set_finalizers(
        &self,
        object: &Deleting,
        finalizers: &[String],
    ) -> Result<(), WriteError>;
    /// Reads the state of a node from the API server; returns `None` if the node does not exist.
    async fn node(&self, name: &str) -> Result<Option<NodeState>, ReadError>;
    /// Reads what the pods of a node that have not ended ask for: resources, claims ([`crate::slot::claim_key`]), and
    /// the pods whose devices a scheduler gives ([`crate::slot::pod_key`]).
    async fn requested(&self, node: &str) -> Result<BTreeSet<String>, ReadError>;
    /// Writes a change of `base` if its version is still current; fails if another writer was first.
    async fn write(&self, base: &Instance, change: &Change) -> Result<(), WriteError>;
}
