//! Objects of brokers, as the controller sees them in the cluster, and the writes to them.

use std::sync::Arc;

use async_trait::async_trait;
use kube::Client;
use leafhost_core::brokers::{Brokers, Change, ManifestSet, ObjectSet};
use leafhost_core::status_store::WriteError;
use leafhost_core::tasks::Tasks;
use tokio::sync::watch;

mod objects;
mod writes;

/// Brokers of a cluster.
pub struct KubeBrokers {
    client: Client,
    objects: watch::Receiver<Arc<ObjectSet>>,
}

impl KubeBrokers {
    /// Watches the objects of brokers. `manifests` receives their Configurations.
    pub fn watch(
        client: &Client,
        manifests: watch::Receiver<Arc<ManifestSet>>,
        tasks: &mut Tasks,
    ) -> Self {
        let (sender, objects) = watch::channel(Arc::default());
        let following = objects::follow(client.clone(), sender, manifests);
        tasks.add_loop("watch of brokers", following);
        Self {
            client: client.clone(),
            objects,
        }
    }
}

#[async_trait]
impl Brokers for KubeBrokers {
    fn objects(&self) -> watch::Receiver<Arc<ObjectSet>> {
        self.objects.clone()
    }

    async fn write(&self, change: &Change) -> Result<(), WriteError> {
        writes::write(&self.client, change).await
    }
}
