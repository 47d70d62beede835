//! The turns of Binds that want the lock of the same node: first come, first served. It knows neither locks nor pods.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};

/// Holds who waits for locks.
#[derive(Debug, Default)]
pub struct Turns {
    /// By node the turns of its Binds.
    nodes: Mutex<HashMap<String, Arc<Semaphore>>>,
    /// Tells that a lock may be over.
    pub changed: Notify,
}

impl Turns {
    /// Waits for the turn at a node, which lasts until what is returned is dropped.
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
