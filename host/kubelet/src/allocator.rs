//! The interface between the kubelet's calls and the plugin that decides about devices.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use crate::ResourceName;

/// What a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Files and folders of the node.
    pub mounts: Vec<Mount>,
    /// Device nodes.
    pub devices: Vec<DeviceSpec>,
    /// Annotations of the container in its runtime; the kubelet's checkpoint keeps them.
    pub annotations: BTreeMap<String, String>,
}

/// A file or folder of the node that the container sees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// The absolute path in the container.
    pub container_path: String,
    /// The absolute path on the node.
    pub host_path: String,
    /// Whether the container may not write.
    pub read_only: bool,
}

/// A device node that the container gets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The absolute path in the container.
    pub container_path: String,
    /// The absolute path on the node.
    pub host_path: String,
    /// Some of `r`, `w`, `m`.
    pub permissions: String,
}

/// Why an allocation is refused. The text ends up in the pod's status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// There is no such device here.
    #[error("{0}")]
    Unknown(String),
    /// The device is here, but cannot be given now.
    #[error("{0}")]
    Unavailable(String),
}

/// Decides which container gets which devices.
#[async_trait]
pub trait Allocator: Send + Sync {
    /// Gives all of `ids` to one container, or none of them. Runs in a task of its own: the kubelet hanging up does not
    /// end it. Never asked for no id, nor for one that is not listed.
    async fn allocate(
        &self,
        resource: &ResourceName,
        ids: BTreeSet<String>,
    ) -> Result<Allocation, Refusal>;

    /// Orders `available` ids, the best first. What is left out comes last.
    fn prefer(&self, resource: &ResourceName, available: &BTreeSet<String>) -> Vec<String>;
}
