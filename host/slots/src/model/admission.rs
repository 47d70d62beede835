//! What the kubelet says while it admits a pod. Plain data.

use std::collections::BTreeSet;

/// What the kubelet says while it admits a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Admission {
    /// The pods that it has admitted and the one that it admits, `namespace/name`.
    pub active: BTreeSet<String>,
    /// The containers that have tickets by its own record, each with the uid of its pod.
    pub served: BTreeSet<Served>,
}

/// Names a container: the uid of its pod, and its name.
pub type Served = (String, String);
