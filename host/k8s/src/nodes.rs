//! Counts the nodes. Knows nothing of what they are counted for.

use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::Api;
use kube::api::{ListParams, PartialObjectMeta};
use tokio::time::timeout;

const REQUEST: Duration = Duration::from_secs(10);

/// Counts them by one request that lists one; nothing if that fails, or if the API server does not say how many more there are.
pub async fn count(nodes: &Api<PartialObjectMeta<Node>>) -> Option<u64> {
    let params = ListParams::default().limit(1);
    let listed = timeout(REQUEST, nodes.list(&params)).await;
    let listed = listed.ok()?.ok()?;
    // A server may list more than it was asked for.
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
