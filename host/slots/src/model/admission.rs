//! State of the kubelet while it admits a pod. Plain data.

use std::collections::BTreeSet;

/// State of the kubelet while it admits a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// Admitted pods and the pod being admitted, as `namespace/name`.
    pub active: BTreeSet<String>,
    /// Containers that have tickets by the kubelet's checkpoint, each with the uid of its pod.
    pub served: BTreeSet<Served>,
}

/// Container, as the uid of its pod and its own name.
pub type Served = (String, String);
