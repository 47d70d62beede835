//! Requests that kube-scheduler sends to an extender, and the answers it expects.
//!
//! Source: `k8s.io/kube-scheduler/extender/v1`, whose JSON uses the names of the Go fields. A request to bind is a [`BindingArgs`].
//!
//! [`BindingArgs`]: leafhost_core::scheduling::BindingArgs

use std::collections::BTreeMap;

use leafhost_core::scheduling::{Pod, PodKey, PodSpec, PodStatus};
use serde::{Deserialize, Serialize};

/// Request to filter or prioritize nodes for a pod.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Args {
    /// Pod to schedule.
    pub pod: PodObject,
    /// Names of the candidate nodes; `None` unless the extender is configured with `nodeCacheCapable: true`.
    #[serde(default)]
    pub node_names: Option<Vec<String>>,
}

/// Pod as kube-scheduler sends it.
#[derive(Debug, Deserialize)]
pub struct PodObject {
    /// Metadata of the pod.
    pub metadata: PodMetadata,
    /// Spec of the pod.
    #[serde(default)]
    pub spec: PodSpec,
    /// Status of the pod.
    #[serde(default)]
    pub status: PodStatus,
}

/// Metadata of a pod.
#[derive(Debug, Deserialize)]
pub struct PodMetadata {
    /// Namespace of the pod.
    pub namespace: String,
    /// Name of the pod.
    pub name: String,
    /// Uid of the pod.
    pub uid: String,
    /// Annotations of the pod.
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl PodObject {
    /// Returns the [`Pod`], or `None` if no container asks for devices.
    pub fn into_pod(self) -> Option<Pod> {
        let key = PodKey {
            namespace: self.metadata.namespace,
            name: self.metadata.name,
        };
        let annotations = self.metadata.annotations.unwrap_or_default();
        let id = (key, self.metadata.uid);
        let pod = Pod::read(id, &annotations, self.spec, self.status);
        Some(pod).filter(Pod::asks)
    }
}

/// Answer to a Filter request.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult {
    /// Names of the nodes that fit.
    pub node_names: Vec<String>,
    /// Reasons that the other nodes do not fit, by node. Evicting pods would not change them.
    pub failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// Reason that the request cannot be answered; empty if it was answered.
    pub error: String,
}

/// Score of one node.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    /// Name of the node.
    pub host: String,
    /// Score from 0 to 10; higher is better.
    pub score: i64,
}

/// Answer to a Bind request.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingResult {
    /// Reason that the pod was not bound; empty if it was bound.
    pub error: String,
}
