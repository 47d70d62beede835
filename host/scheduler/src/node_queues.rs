//! Queues of Binds that want the lock of the same node: first come, first served. Knows neither locks nor pods.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Queues of Binds that wait for the locks of nodes.
#[derive(Debug, Default)]
pub struct NodeQueues {
    /// Semaphore with one permit, by node.
    nodes: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Notified when a lock may be free.
    pub changed: Notify,
}

impl NodeQueues {
    /// Waits for the permit of a node, which is held until it is dropped.
    pub async fn acquire(&self, node: &str) -> Option<OwnedSemaphorePermit> {
        let queue = {
            let mut all = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, queue| Arc::strong_count(queue) > 1);
            let queue = all.entry(node.to_owned());
            Arc::clone(queue.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        queue.acquire_owned().await.ok()
    }
}
