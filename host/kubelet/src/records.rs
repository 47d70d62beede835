//! The kubelet's records of the device ids of containers: PodResources, the checkpoint for ids that PodResources leaves out, and the
//! folders of pods, which show when the kubelet has finished with a pod.
//!
//! Only reads: nothing here decides whether an id is free.

use std::collections::{BTreeMap, BTreeSet};

mod checkpoint;
mod pod_resources;
mod pods;

pub use checkpoint::{CheckpointError, Stamp, read_checkpoint};
pub use pod_resources::{Error, PodResources};
pub use pods::{PodsFolder, pod_exists, pod_has_volumes};

/// Answer of PodResources.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Listed {
    /// Holders by resource and device id. Several containers of a pod may hold one id.
    pub holders: BTreeMap<(String, String), BTreeSet<ListedHolder>>,
    /// Active pods, with or without devices, as (namespace, name).
    pub pods: BTreeSet<(String, String)>,
    /// Claims that containers of active pods use, as (namespace, name).
    pub claims: BTreeSet<(String, String)>,
}

/// Container in PodResources.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ListedHolder {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub pod: String,
    /// Name of the container.
    pub container: String,
}

/// Checkpoint of the kubelet. It is written at every allocation and at every list that a plugin sends, so it may lag behind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Checkpoint {
    /// Entries of the checkpoint.
    pub entries: Vec<CheckpointEntry>,
    /// Stamp of the file that was read.
    pub stamp: Stamp,
}

/// Devices of one resource that a container has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckpointEntry {
    /// Uid of the pod.
    pub pod_uid: String,
    /// Name of the container, which may be an ordinary init container.
    pub container: String,
    /// Name of the resource.
    pub resource: String,
    /// Device ids.
    pub ids: BTreeSet<String>,
    /// Annotations of the answer to the allocation.
    pub annotations: BTreeMap<String, String>,
}
