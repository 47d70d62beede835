//! Task that runs each duty of the controller in a loop of its own, so that none waits for the writes of another.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::cluster::Cluster;
use leafhost_core::problem::Problem;
use leafhost_core::resource_names::NameStore;
use leafhost_core::status_store::StatusStore;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::error::Error;
use crate::metrics::Metrics;
use crate::{events, finalizers, names, releasing, statuses};

/// The controller.
pub struct Controller {
    cluster: Arc<dyn Cluster>,
    statuses: Arc<dyn StatusStore>,
    names: Arc<dyn NameStore>,
    name_grace: Duration,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    metrics: Arc<Metrics>,
}

impl Controller {
    /// Creates a controller that acts on this cluster while it leads, and that shows the problems of `brokers`, too. An unused name stays
    /// reserved for `name_grace`.
    pub fn new(
        cluster: Arc<dyn Cluster>,
        statuses: Arc<dyn StatusStore>,
        names: Arc<dyn NameStore>,
        name_grace: Duration,
        brokers: watch::Receiver<Arc<Vec<Problem>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            cluster,
            statuses,
            names,
            name_grace,
            brokers,
            metrics,
        }
    }

    /// Runs until `shutdown` is cancelled. A write in flight is then left to the API server.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let (cluster, store, metrics) = (&*self.cluster, &*self.statuses, &*self.metrics);
        let names = &*self.names;
        let (sender, problems) = watch::channel(Arc::default());
        let tasks = async {
            tokio::try_join!(
                releasing::run(cluster, metrics),
                finalizers::run(cluster),
                names::run(cluster, store, names, self.name_grace, metrics),
                statuses::run(cluster, store, names, self.brokers, sender, metrics),
                events::run(cluster.leads(), store, problems),
            )
        };
        tokio::select! {
            () = shutdown.cancelled() => Ok(()),
            ended = tasks => ended.map(drop),
        }
    }
}
