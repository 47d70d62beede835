//! The task: all that the controller does, each in a loop of its own, so that none of them waits for another one's writes.

use std::sync::Arc;

use leafhost_core::cluster::Cluster;
use leafhost_core::problem::Problem;
use leafhost_core::status_store::StatusStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::{events, finalizers, releasing, statuses};

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
#[error("the source of {0} has ended")]
pub struct Error(pub(crate) &'static str);

/// The controller.
pub struct Controller {
    cluster: Arc<dyn Cluster>,
    statuses: Arc<dyn StatusStore>,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    metrics: Arc<Metrics>,
}

impl Controller {
    /// One that acts on this cluster while it leads, and shows what is wrong with `brokers`, too.
    pub fn new(
        cluster: Arc<dyn Cluster>,
        statuses: Arc<dyn StatusStore>,
        brokers: watch::Receiver<Arc<Vec<Problem>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            cluster,
            statuses,
            brokers,
            metrics,
        }
    }

    /// Runs until `shutdown`. A write that is being made then is left to the API server.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let (cluster, store, metrics) = (&*self.cluster, &*self.statuses, &*self.metrics);
        let (sender, problems) = watch::channel(Arc::default());
        let tasks = async {
            tokio::try_join!(
                releasing::run(cluster, metrics),
                finalizers::run(cluster),
                statuses::run(cluster, store, self.brokers, sender, metrics),
                events::run(cluster.leads(), store, problems),
            )
        };
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            ended = tasks => ended.map(drop),
        }
    }
}
