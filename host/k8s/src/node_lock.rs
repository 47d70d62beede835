//! Reads the lock annotation of a Node, and writes it only if the Node still has the version that was read.

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ObjectMeta, PartialObjectMeta, Patch};
use leafhost_core::scheduling::{NODE_LOCK, NodeSeen};
use serde_json::{Value, json};

use crate::answers::{self, Failure, Kind};
use crate::instance::REQUEST;
use crate::requests::patch_by;

/// Returns the version and the lock annotation of a Node.
pub fn seen(metadata: &ObjectMeta) -> NodeSeen {
    let lock = metadata.annotations.as_ref();
    let lock = lock.and_then(|all| all.get(NODE_LOCK));
    NodeSeen {
        version: metadata.resource_version.clone().unwrap_or_default(),
        lock: lock.cloned().unwrap_or_default(),
    }
}

/// Writes or removes the lock annotation; returns `None` if the Node has another version.
pub async fn set(
    nodes: &Api<PartialObjectMeta<Node>>,
    node: &str,
    version: &str,
    lock: Option<&str>,
    manager: &str,
) -> Result<Option<NodeSeen>, Failure> {
    let annotations = json!({NODE_LOCK: lock.map_or(Value::Null, Value::from)});
    let patch = json!({"metadata": {"resourceVersion": version, "annotations": annotations}});
    let params = patch_by(manager);
    let patch = Patch::Merge(&patch);
    let written = nodes.patch_metadata(node, &params, &patch);
    match answers::within(REQUEST, written).await {
        Ok(node) => Ok(Some(seen(&node.metadata))),
        Err(failure) if failure.kind == Kind::Conflict => Ok(None),
        Err(failure) => Err(failure),
    }
}
