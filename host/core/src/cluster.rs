//! The port of the controller: a cluster as one process sees it that acts for all nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use tokio::sync::watch;

use crate::instance::Instance;
use crate::names::ConfigurationKey;
use crate::ports::{Change, InstanceSet, StoreError};
use crate::problem::Problem;
use crate::status_store::WriteError;

/// All nodes of the cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NodeSet {
    /// Whether the nodes have been read once. Until then an absent node says nothing.
    pub complete: bool,
    /// By name.
    pub nodes: BTreeMap<String, NodeState>,
}

/// What the controller knows of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct NodeState {
    /// An operator says that it is shut down and will not come back as it was: the taint `node.kubernetes.io/out-of-service`.
    pub is_out_of_service: bool,
    /// Since when it is not Ready.
    pub not_ready_since: Option<Timestamp>,
}

/// Maps Configurations whose devices the scheduler gives to whether there is a device class for them, or why not. Those of which that is not known
/// yet are left out.
pub type Classes = BTreeMap<ConfigurationKey, Result<(), Problem>>;

/// An object that is being deleted and waits for finalizers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Deleting {
    /// What it is.
    pub kind: DeletingKind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What identifies this object among all that ever had the name.
    pub uid: String,
    /// The version of the object.
    pub resource_version: String,
    /// What it waits for.
    pub finalizers: Vec<String>,
}

/// What an object is.
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

/// The finalizers of Kubernetes itself that have no domain.
const OF_KUBERNETES: [&str; 2] = ["orphan", "foregroundDeletion"];

/// Whether a finalizer of a Configuration or Instance is of an agent of Akri: it is the name of its node, without a domain.
pub fn is_of_akri(finalizer: &str) -> bool {
    !finalizer.contains('/') && !OF_KUBERNETES.contains(&finalizer)
}

/// A read that failed; it may succeed later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("cannot read {what}: {why}; the controller tries again")]
pub struct ReadError {
    /// What was to be read.
    pub what: String,
    /// What the API server said, or that it did not answer.
    pub why: String,
}

/// The cluster.
#[async_trait]
pub trait Cluster: Send + Sync {
    /// Whether this process is the one that acts.
    fn leads(&self) -> watch::Receiver<bool>;
    /// The nodes.
    fn nodes(&self) -> watch::Receiver<Arc<NodeSet>>;
    /// The Instances of all nodes.
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>>;
    /// The device classes of Configurations whose devices the scheduler gives.
    fn classes(&self) -> watch::Receiver<Arc<Classes>>;
    /// The objects of ours that are being deleted.
    fn deleting(&self) -> watch::Receiver<Vec<Deleting>>;
    /// Leaves an object these finalizers, if it still is as it was seen.
    async fn set_finalizers(
        &self,
        object: &Deleting,
        finalizers: &[String],
    ) -> Result<(), WriteError>;
    /// What the cluster has of a node, read now; nothing if there is no such node.
    async fn node(&self, name: &str) -> Result<Option<NodeState>, ReadError>;
    /// The resources that pods of a node ask for, their claims ([`crate::slot::claim_key`]), and those that a scheduler gives devices ([`crate::slot::pod_key`]), of those pods that have not ended; read now.
    async fn requested(&self, node: &str) -> Result<BTreeSet<String>, ReadError>;
    /// Writes a change of `base`, if the object still is as it was seen; one that somebody was quicker than fails.
    async fn write(&self, base: &Instance, change: &Change) -> Result<(), StoreError>;
}
