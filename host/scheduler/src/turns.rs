//! Turns of Binds that want the lock of the same node: first come, first served. Knows neither locks nor pods.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Queues of Binds that wait for the locks of nodes.
#[derive(Debug, Default)]
pub struct Turns {
    /// Semaphore with one permit, by node.
    nodes: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Notified when a lock may be free.
    pub changed: Notify,
}

impl Turns {
    /// Waits for the turn at a node, which lasts until the returned permit is dropped.
    pub async fn at(&self, node: &str) -> Option<OwnedSemaphorePermit> {
        let turns = {
            let mut all = self.nodes.lock().unwrap_or_else(PoisonError::into_inner);
            all.retain(|_, turns| Arc::strong_count(turns) > 1);
            let turns = all.entry(node.to_owned());
            Arc::clone(turns.or_insert_with(|| Arc::new(Semaphore::new(1))))
        };
        turns.acquire_owned().await.ok()
    }
}
