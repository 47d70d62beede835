//! Port of brokers: the pods, jobs, services and claim templates that the controller creates for Configurations.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use serde_json::Value;
use tokio::sync::watch;

use crate::configuration::Manifest;
use crate::names::ConfigurationKey;
use crate::status_store::WriteError;

/// Label whose value is the object's own name, as in Akri.
pub const APP_LABEL: &str = "app";
/// Label of every object that a controller creates, as in Akri; its value is [`crate::names::GROUP`].
pub const CONTROLLER_LABEL: &str = "controller";
/// Label that names the Configuration, as in Akri.
pub const CONFIGURATION_LABEL: &str = "akri.sh/configuration";
/// Label that names the Instance, as in Akri.
pub const INSTANCE_LABEL: &str = "akri.sh/instance";
/// Label that names the node a pod is for, as in Akri.
pub const TARGET_NODE_LABEL: &str = "akri.sh/target-node";
/// Annotation with a digest of the input that an object was generated from.
pub const MADE_OF_ANNOTATION: &str = "leafhost.dev/made-of";

/// Kind of an object of brokers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, strum::Display)]
pub enum Kind {
    /// Pod.
    Pod,
    /// Job.
    Job,
    /// Service.
    Service,
    /// Template of the claims by which pods get devices that the scheduler allocates.
    #[strum(to_string = "ResourceClaimTemplate")]
    ClaimTemplate,
}

/// Kind, namespace and name of an object.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectKey {
    /// Kind of the object.
    pub kind: Kind,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// Fields of a pod, job, service or claim template that the controller uses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Object {
    /// Uid of the object: distinguishes it from all others that ever had the name.
    pub uid: String,
    /// Uid of the controlling owner.
    pub owner: Option<String>,
    /// True if the object has the label that controllers of Akri and Leafhost set.
    pub is_made: bool,
    /// Value of [`CONFIGURATION_LABEL`].
    pub configuration: Option<String>,
    /// Value of [`INSTANCE_LABEL`].
    pub instance: Option<String>,
    /// Value of [`TARGET_NODE_LABEL`].
    pub node: Option<String>,
    /// Digest of the input that the object was generated from; Akri writes none.
    pub made_of: Option<String>,
    /// True while the object is being deleted.
    pub is_deleting: bool,
    /// Phase of a pod; [`Phase::Pending`] for all other kinds.
    pub phase: Phase,
}

/// Phase of a pod.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// Not schedulable: the scheduler has found no node since this time.
    Unschedulable(Timestamp),
    /// Not running yet.
    Pending,
    /// Running.
    Running,
    /// Ended after running for this time; not restarted.
    Ended(Duration),
}

/// All objects of brokers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ObjectSet {
    /// True once the objects have been listed. Until then an absent object may exist.
    pub complete: bool,
    /// Objects by key.
    pub objects: BTreeMap<ObjectKey, Arc<Object>>,
}

/// All Configurations of the cluster as written, without the text for handlers.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ManifestSet {
    /// True once the Configurations have been listed. Until then an absent Configuration may exist.
    pub complete: bool,
    /// Configurations that can be parsed.
    pub manifests: BTreeMap<ConfigurationKey, Arc<Manifest>>,
}

/// Desired state of an object.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// Key of the object.
    pub key: ObjectKey,
    /// Digest of the input that `body` was generated from.
    pub made_of: String,
    /// Complete object.
    pub body: Value,
}

/// Write to one object.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Creates an object.
    Create(Wanted),
    /// Replaces the spec of an object and updates its [`MADE_OF_ANNOTATION`].
    Replace {
        /// Uid that the object must have.
        uid: String,
        /// Object to write.
        wanted: Wanted,
    },
    /// Deletes an object; a job's pods are deleted first.
    Delete {
        /// Object to delete.
        key: ObjectKey,
        /// Uid that the object must have.
        uid: String,
    },
}

impl Change {
    /// Returns the key of the changed object.
    pub fn key(&self) -> &ObjectKey {
        match self {
            Self::Create(wanted) | Self::Replace { wanted, .. } => &wanted.key,
            Self::Delete { key, .. } => key,
        }
    }
}

/// Access to the objects of brokers for the controller, besides its [`Cluster`](crate::cluster::Cluster).
#[async_trait]
pub trait Brokers: Send + Sync {
    /// Returns a watch of the pods, jobs, services and claim templates.
    fn objects(&self) -> watch::Receiver<Arc<ObjectSet>>;
    /// Writes a change to the cluster.
    async fn write(&self, change: &Change) -> Result<(), WriteError>;
}
