//! What kube-scheduler sends to an extender and what it takes.
//!
//! Source: `k8s.io/kube-scheduler/extender/v1`, whose names are those of Go.

use std::collections::BTreeMap;

use leafhost_core::scheduling::{Pod, PodKey, PodSpec, PodStatus};
use serde::{Deserialize, Serialize};

/// Asks which of some nodes will do for a pod.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct Args {
    /// The pod.
    pub pod: PodObject,
    /// The names of the nodes, if the extender keeps what it needs of them itself.
    #[serde(default)]
    pub node_names: Option<Vec<String>>,
}

/// Is a pod as it is sent.
#[derive(Debug, Deserialize)]
pub struct PodObject {
    /// Names it.
    pub metadata: PodMetadata,
    /// What it consists of.
    #[serde(default)]
    pub spec: PodSpec,
    /// How it is.
    #[serde(default)]
    pub status: PodStatus,
}

/// Names a pod.
#[derive(Debug, Deserialize)]
pub struct PodMetadata {
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The uid.
    pub uid: String,
    /// The annotations.
    #[serde(default)]
    pub annotations: Option<BTreeMap<String, String>>,
}

impl PodObject {
    /// Returns the pod, if it says anything of devices.
    pub fn into_pod(self) -> Option<Pod> {
        let key = PodKey {
            namespace: self.metadata.namespace,
            name: self.metadata.name,
        };
        let annotations = self.metadata.annotations.unwrap_or_default();
        Pod::read(
            (key, self.metadata.uid),
            &annotations,
            self.spec,
            self.status,
        )
    }
}

/// Says which nodes will do.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct FilterResult {
    /// Those that do.
    pub node_names: Vec<String>,
    /// Says why the others do not: no pod that is evicted would change that.
    pub failed_and_unresolvable_nodes: BTreeMap<String, String>,
    /// Says what is wrong with the question.
    pub error: String,
}

/// Says how well a node will do, from 0 to 10.
#[derive(Debug, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct HostPriority {
    /// The node.
    pub host: String,
    /// How well.
    pub score: i64,
}

/// Asks to bind a pod.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingArgs {
    /// The name of the pod.
    pub pod_name: String,
    /// Its namespace.
    pub pod_namespace: String,
    /// Its uid.
    #[serde(rename = "PodUID")]
    pub pod_uid: String,
    /// The node.
    pub node: String,
}

/// Says whether a pod was bound.
#[derive(Debug, Default, Serialize)]
#[serde(rename_all = "PascalCase")]
pub struct BindingResult {
    /// Why it was not.
    pub error: String,
}
