//! Runs each duty of the controller in a separate loop, so that no duty waits for the writes of another.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::brokers::Brokers;
use leafhost_core::cluster::Cluster;
use tokio::sync::watch;

use crate::metrics::Metrics;
use crate::{brokers, events, evictions, finalizers, names, node_labels, releasing, statuses};

/// Acts on this cluster while this process leads, until the future is dropped. Creates brokers only through `store`. An unused name stays
/// reserved for `name_grace`. Evicts pods whose device is gone only if `evicts` is true, and labels nodes only if `labels` is true. A write
/// in flight at the end is left to the API server.
pub async fn run(
    cluster: &dyn Cluster,
    store: Option<Arc<dyn Brokers>>,
    name_grace: Duration,
    (evicts, labels): (bool, bool),
    metrics: &Metrics,
) {
    let (sender, problems) = watch::channel(Arc::default());
    let (evictor, restarts) = watch::channel(Arc::default());
    let unmade = watch::Sender::default();
    let creating = async {
        if let Some(store) = store {
            brokers::run(cluster, &*store, unmade.clone(), metrics).await;
        }
    };
    tokio::join!(
        releasing::run(cluster, metrics),
        finalizers::run(cluster),
        names::run(cluster, name_grace, metrics),
        creating,
        statuses::run(cluster, unmade.subscribe(), restarts, sender, metrics),
        evictions::run(cluster, evicts, evictor, metrics),
        node_labels::run(cluster, labels, metrics),
        events::run(cluster, problems),
    );
}
