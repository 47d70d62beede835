//! Counts the nodes of the cluster, while an Instance waits for the others.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::ports::InstanceStore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Bounds how often the nodes are counted.
const COUNTED: Duration = Duration::from_secs(1);

/// The count that runs, and when the last one began.
#[derive(Default)]
pub(super) struct NodeCount {
    counting: JoinSet<Option<usize>>,
    counted: Option<Instant>,
}

impl NodeCount {
    /// Begins to count, unless that was done a moment ago.
    pub fn count(&mut self, store: &Arc<dyn InstanceStore>) {
        let is_new = self.counted.is_some_and(|at| at.elapsed() < COUNTED);
        if !is_new && self.counting.is_empty() {
            self.counted = Some(Instant::now());
            let store = Arc::clone(store);
            self.counting
                .spawn(async move { store.count_nodes().await });
        }
    }

    /// Returns whether there is one node alone, when a count has ended; nothing if none runs.
    pub async fn next(&mut self) -> Option<bool> {
        let count = self.counting.join_next().await?;
        Some(count.ok().flatten() == Some(1))
    }
}
