//! `resourcenames.leafhost.dev`: reservations of resource names for namespaces. The controller writes these objects, agents obey them.

use kube::CustomResource;
use serde::{Deserialize, Serialize};

/// A reservation of the name of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, CustomResource)]
#[kube(
    group = "leafhost.dev",
    version = "v1alpha1",
    kind = "ResourceName",
    derive = "PartialEq",
    schema = "disabled"
)]
pub struct ResourceNameSpec {
    /// Namespace for which the name is reserved.
    pub namespace: String,
}
