//! `resourcenames.leafhost.dev`: reservations of resource names for namespaces. The controller writes these objects, agents obey them.

use kube::{CustomResource, KubeSchema};
use serde::{Deserialize, Serialize};

/// A reservation of the name of a Configuration.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, KubeSchema, CustomResource)]
#[kube(
    group = "leafhost.dev",
    version = "v1alpha1",
    kind = "ResourceName",
    derive = "PartialEq",
    doc = "The namespace that has the resource akri.sh/NAME and those of the Instances of Configuration NAME. The controller writes it. Delete it to free the name.",
    printcolumn(name = "Namespace", type_ = "string", json_path = ".spec.namespace"),
    printcolumn(
        name = "Age",
        type_ = "date",
        json_path = ".metadata.creationTimestamp"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ResourceNameSpec {
    /// The namespace.
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self == oldSelf").message("cannot be changed"))]
    pub namespace: String,
}
