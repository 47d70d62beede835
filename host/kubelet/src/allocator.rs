//! The interface between the kubelet's calls and the plugin that decides about devices.

use std::collections::{BTreeMap, BTreeSet};

use async_trait::async_trait;

use crate::ResourceName;
pub use crate::proto::device_plugin::{DeviceSpec, Mount};

/// Resources that a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allocation {
    /// Environment variables.
    pub envs: BTreeMap<String, String>,
    /// Files and folders of the node that are mounted into the container, by absolute paths.
    pub mounts: Vec<Mount>,
    /// Device nodes, by absolute paths; the permissions are some of `r`, `w`, `m`.
    pub devices: Vec<DeviceSpec>,
    /// Annotations for the container runtime; the kubelet's checkpoint keeps them.
    pub annotations: BTreeMap<String, String>,
}

/// Reason why an allocation is refused. The text is shown in the pod's status.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The device does not exist.
    #[error("{0}")]
    Unknown(String),
    /// The device exists, but cannot be allocated now.
    #[error("{0}")]
    Unavailable(String),
}

/// Decides which container gets which devices.
#[async_trait]
pub trait Allocator: Send + Sync {
    /// Allocates all of `ids` to one container, or none of them. The call runs in a task of its own and continues if the kubelet hangs up.
    /// `ids` is never empty and has only listed ids.
    async fn allocate(
        &self,
        resource: &ResourceName,
        ids: BTreeSet<String>,
    ) -> Result<Allocation, Refusal>;

    /// Orders `available` ids, the best first. Ids that are left out come last.
    fn prefer(&self, resource: &ResourceName, available: &BTreeSet<String>) -> Vec<String>;
}
