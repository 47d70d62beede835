//! Which device ids the kubelet says its containers have: PodResources, the checkpoint for what that leaves out, and the
//! folders of the pods for when the kubelet is done with one.
//!
//! Only reads. What is made of it is the caller's: nothing here knows whether an id is free.

use std::collections::{BTreeMap, BTreeSet};

mod checkpoint;
mod pod_resources;
mod pods;

pub use checkpoint::{CheckpointError, Stamp, read_checkpoint};
pub use pod_resources::{Error, PodResources};
pub use pods::{PodsFolder, pod_exists, pod_has_volumes};

/// What PodResources answered.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// By resource and device id: who has it. More than one container of a pod may.
    pub holders: BTreeMap<(String, String), Vec<ListedHolder>>,
    /// The active pods, with devices or without, as (namespace, name).
    pub pods: BTreeSet<(String, String)>,
    /// Names the claims that containers of active pods use, as (namespace, name).
    pub claims: BTreeSet<(String, String)>,
}

/// A container in PodResources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedHolder {
    /// The pod's namespace.
    pub namespace: String,
    /// The pod's name.
    pub pod: String,
    /// The container.
    pub container: String,
}

/// The kubelet's own record. It is written at every allocation and at every list a plugin sends, so it may lag behind.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Checkpoint {
    /// The entries.
    pub entries: Vec<CheckpointEntry>,
    /// Which file that was.
    pub stamp: Stamp,
}

/// What one container has of one resource.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// The pod.
    pub pod_uid: String,
    /// The container, ordinary init containers included.
    pub container: String,
    /// The resource.
    pub resource: String,
    /// The device ids.
    pub ids: BTreeSet<String>,
    /// The annotations of the answer that was given to the allocation.
    pub annotations: BTreeMap<String, String>,
}
