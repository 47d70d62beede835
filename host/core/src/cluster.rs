//! Port of the controller: the cluster as seen by one process that acts for all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::instance::Instance;
use crate::names::ConfigurationKey;
use crate::ports::{Change, InstanceSet};
use crate::problem::Problem;
use crate::resource_names::NameStore;
use crate::status_store::{StatusStore, WriteError};

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

/// Access to the cluster for the controller.
#[async_trait]
pub trait Cluster: StatusStore + NameStore {
    /// Returns a watch that is true while this process leads.
    fn leads(&self) -> watch::Receiver<bool>;
    /// Returns a watch of the nodes.
    fn nodes(&self) -> watch::Receiver<Arc<NodeSet>>;
    /// Returns a watch of the Instances of all nodes.
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>>;
    /// Returns a watch of the device classes of Configurations whose devices the scheduler allocates.
    fn classes(&self) -> watch::Receiver<Arc<Classes>>;
    /// Returns a watch of our objects that are being deleted.
    fn deleting(&self) -> watch::Receiver<Vec<Deleting>>;
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
