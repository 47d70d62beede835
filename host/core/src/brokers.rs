//! The port of brokers: the pods, jobs, services and templates of claims that Configurations ask for, as the controller makes them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use crate::cluster::NodeSet;
use crate::configuration::Manifest;
use crate::names::ConfigurationKey;
use crate::ports::InstanceSet;
use crate::resource_names::NameSet;

/// The label that names an object after itself, as in Akri.
pub const APP_LABEL: &str = "app";
/// The label of all that a controller makes, as in Akri; its value is [`crate::names::GROUP`].
pub const CONTROLLER_LABEL: &str = "controller";
/// The label that names the Configuration, as in Akri.
pub const CONFIGURATION_LABEL: &str = "akri.sh/configuration";
/// The label that names the Instance, as in Akri.
pub const INSTANCE_LABEL: &str = "akri.sh/instance";
/// The label that names the node that a pod is for, as in Akri.
pub const TARGET_NODE_LABEL: &str = "akri.sh/target-node";
/// The annotation with the digest of what an object was made of.
pub const MADE_OF_ANNOTATION: &str = "leafhost.dev/made-of";

/// What an object is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum Kind {
    /// A pod.
    Pod,
    /// A job.
    Job,
    /// A service.
    Service,
    /// A template of the claims by which pods get devices that the scheduler gives.
    #[strum(to_string = "ResourceClaimTemplate")]
    ClaimTemplate,
}

/// Which object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// What it is.
    pub kind: Kind,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A pod, job or service, as far as it means something here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// What identifies it among all that ever had the name.
    pub uid: String,
    /// The uid of the object that controls it.
    pub owner: Option<String>,
    /// Whether it has the label of what a controller of Akri or of ours makes.
    pub is_made: bool,
    /// The value of [`CONFIGURATION_LABEL`].
    pub configuration: Option<String>,
    /// The value of [`INSTANCE_LABEL`].
    pub instance: Option<String>,
    /// The value of [`TARGET_NODE_LABEL`].
    pub node: Option<String>,
    /// The digest of what it was made of; Akri writes none.
    pub made_of: Option<String>,
    /// Whether it is being deleted.
    pub is_deleting: bool,
    /// How far a pod is. Others are [`Phase::Pending`].
    pub phase: Phase,
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Since then the scheduler has found no place for it.
    Unschedulable(Timestamp),
    /// It does not run yet.
    Pending,
    /// It runs.
    Running,
    /// It has ended after that time, and is not started again.
    Ended(Duration),
}

/// All objects of brokers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectSet {
    /// Whether they have been read once. Until then an absent object says nothing.
    pub complete: bool,
    /// The objects.
    pub objects: BTreeMap<ObjectKey, Arc<Object>>,
}

/// All Configurations of the cluster as they are written, without the texts for handlers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ManifestSet {
    /// Whether they have been read once. Until then an absent Configuration says nothing.
    pub complete: bool,
    /// The Configurations that can be read.
    pub manifests: BTreeMap<ConfigurationKey, Arc<Manifest>>,
}

/// A write.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Creates an object.
    Create {
        /// Which.
        key: ObjectKey,
        /// The digest of what it is made of.
        made_of: String,
        /// The whole object.
        body: Value,
    },
    /// Replaces the spec of an object, and names what it is made of now.
    Replace {
        /// Which.
        key: ObjectKey,
        /// The uid that it must have.
        uid: String,
        /// The digest of what it is made of.
        made_of: String,
        /// The whole object.
        body: Value,
    },
    /// Deletes an object; of a job the pods first.
    Delete {
        /// Which.
        key: ObjectKey,
        /// The uid that it must have.
        uid: String,
    },
}

impl Change {
    /// The object.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Create { key, .. } | Self::Replace { key, .. } | Self::Delete { key, .. } => key,
        }
    }
}

/// Why a write did nothing.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum WriteError {
    /// The object is not as the write assumes. What it is now will be seen.
    #[error("somebody else was quicker")]
    Conflict,
    /// Somebody else's object has the name.
    #[error("the name is taken")]
    Taken,
    /// A rule forbids it.
    #[error("{0}")]
    Refused(String),
    /// The API server did not do it, or its answer is not known.
    #[error("{message}")]
    Unavailable {
        /// What happened.
        message: String,
        /// When the API server wants to be asked again, where it says so.
        retry_after: Option<Duration>,
    },
}

/// What brokers are made of, and where.
#[async_trait]
pub trait Brokers: Send + Sync {
    /// Whether this process is the one that acts.
    fn leads(&self) -> watch::Receiver<bool>;
    /// The nodes.
    fn nodes(&self) -> watch::Receiver<Arc<NodeSet>>;
    /// The Configurations.
    fn manifests(&self) -> watch::Receiver<Arc<ManifestSet>>;
    /// The Instances of all nodes.
    fn instances(&self) -> watch::Receiver<Arc<InstanceSet>>;
    /// The pods, jobs and services.
    fn objects(&self) -> watch::Receiver<Arc<ObjectSet>>;
    /// The names that namespaces have.
    fn names(&self) -> watch::Receiver<Arc<NameSet>>;
    /// Writes a change.
    async fn write(&self, change: &Change) -> Result<(), WriteError>;
}
