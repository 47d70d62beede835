//! Counts the nodes, and determines the state of a node. Knows nothing of its users.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::{ListParams, PartialObjectMeta};
use kube::{Api, ResourceExt as _};
use leafhost_core::cluster::NodeState;

use crate::answers;

const REQUEST: Duration = Duration::from_secs(10);
/// Taint by which an operator marks a node as shut down.
const OUT_OF_SERVICE: &str = "node.kubernetes.io/out-of-service";

/// Counts the nodes by one request that lists one of them. Returns `None` if it fails, or if the API server does not report the number of
/// remaining nodes.
pub async fn count(nodes: &Api<PartialObjectMeta<Node>>) -> Option<u64> {
    let params = ListParams::default().limit(1);
    let listed = answers::within(REQUEST, nodes.list(&params)).await.ok()?;
    // A server may list more than requested.
    let count = u64::try_from(listed.items.len()).ok()?;
    let is_more = listed
        .metadata
        .continue_
        .is_some_and(|next| !next.is_empty());
    match listed.metadata.remaining_item_count {
        Some(remaining) => count.checked_add(u64::try_from(remaining).ok()?),
        None => (!is_more).then_some(count),
    }
}

/// Returns the state of a node.
pub fn state(node: &Node) -> NodeState {
    let taints = node.spec.iter().flat_map(|spec| &spec.taints);
    let is_out = taints.flatten().any(|taint| taint.key == OUT_OF_SERVICE);
    let conditions = node.status.iter().flat_map(|status| &status.conditions);
    let ready = conditions
        .flatten()
        .find(|condition| condition.type_ == "Ready");
    // A node that has not reported yet has not been Ready since its creation.
    let since = match ready {
        Some(ready) if ready.status == "True" => None,
        Some(ready) => ready.last_transition_time.clone(),
        None => node.metadata.creation_timestamp.clone(),
    };
    NodeState {
        is_out_of_service: is_out,
        not_ready_since: since.map(|time| time.0),
    }
}

/// Returns the value of the label by which slices select nodes.
pub fn hostname(node: &Node) -> Option<String> {
    node.labels().get("kubernetes.io/hostname").cloned()
}
