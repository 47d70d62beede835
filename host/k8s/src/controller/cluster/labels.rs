//! Node labels of this API group. The controller sets its own labels by server-side apply, so that the managed fields tell them from those
//! of other writers.

use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ManagedFieldsEntry;
use kube::api::{Api, Patch};
use kube::{Client, ResourceExt as _};
use leafhost_core::cluster::NodeLabels;
use leafhost_core::names::GROUP;
use leafhost_core::status_store::WriteError;
use serde_json::json;

use super::written;
use crate::requests::patch_by;

/// Field manager of the labels.
const MANAGER: &str = "leafhost-controller-labels";

/// Returns true if a label or a resource is of this API group.
pub fn is_ours(name: &str) -> bool {
    name.strip_prefix(GROUP)
        .is_some_and(|rest| rest.starts_with('/'))
}

/// Returns the labels of a node.
pub fn read(node: &Node) -> NodeLabels {
    let all = node.labels().keys().filter(|label| is_ours(label));
    let entries = node.metadata.managed_fields.iter().flatten();
    let own = entries.filter(|entry| {
        entry.manager.as_deref() == Some(MANAGER) && entry.operation.as_deref() == Some("Apply")
    });
    NodeLabels {
        all: all.cloned().collect(),
        own: own.flat_map(labels).collect(),
    }
}

/// Returns the labels that an entry of the managed fields names.
fn labels(entry: &ManagedFieldsEntry) -> BTreeSet<String> {
    let fields = entry.fields_v1.as_ref();
    let labels = fields.and_then(|fields| fields.0.pointer("/f:metadata/f:labels")?.as_object());
    let names = labels
        .into_iter()
        .flatten()
        .filter_map(|(name, _)| name.strip_prefix("f:"));
    names
        .filter(|name| is_ours(name))
        .map(str::to_owned)
        .collect()
}

/// Sets these labels of a node, and removes all others that the controller has set. Fails if another writer has set one of them to another
/// value.
pub async fn set(client: &Client, node: &str, labels: &BTreeSet<String>) -> Result<(), WriteError> {
    let api: Api<Node> = Api::all(client.clone());
    let labels: BTreeMap<&str, &str> = labels
        .iter()
        .map(|label| (label.as_str(), "true"))
        .collect();
    let patch = Patch::Apply(json!({
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node, "labels": labels},
    }));
    let params = patch_by(MANAGER);
    written(api.patch(node, &params, &patch)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_labels_are_those_that_the_controller_has_applied() {
        let fields = |labels: serde_json::Value| json!({"f:metadata": {"f:labels": labels}});
        let node: Node = serde_json::from_value(json!({
            "metadata": {
                "name": "a",
                "labels": {"akri.sh/cams": "true", "akri.sh/lab": "x", "kubernetes.io/os": "linux", "akri.shop/a": "true"},
                "managedFields": [
                    {"manager": "kubectl", "operation": "Update", "fieldsV1": fields(json!({"f:akri.sh/lab": {}}))},
                    {"manager": MANAGER, "operation": "Update", "fieldsV1": fields(json!({"f:akri.sh/lab": {}}))},
                    {"manager": MANAGER, "operation": "Apply", "fieldsV1": fields(json!({".": {}, "f:akri.sh/cams": {}}))},
                    {"manager": MANAGER, "operation": "Apply"},
                ],
            },
        }))
        .unwrap();
        let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        let expected = NodeLabels {
            all: names(&["akri.sh/cams", "akri.sh/lab"]),
            own: names(&["akri.sh/cams"]),
        };
        assert_eq!(read(&node), expected);
        assert_eq!(read(&Node::default()), NodeLabels::default());
    }
}
