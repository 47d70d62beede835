//! Counts the nodes of the cluster while an Instance waits for them.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::ports::InstanceStore;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Minimum time between the beginnings of two counts.
const COUNTED: Duration = Duration::from_secs(1);

/// Running count, and the time the last one began.
#[derive(Default)]
pub(super) struct NodeCount {
    counting: JoinSet<Option<usize>>,
    counted: Option<Instant>,
}

impl NodeCount {
    /// Begins a count, unless one is running or began less than a second ago.
    pub fn count(&mut self, store: &Arc<dyn InstanceStore>) {
        let is_new = self.counted.is_some_and(|at| at.elapsed() < COUNTED);
        if !is_new && self.counting.is_empty() {
            self.counted = Some(Instant::now());
            let store = Arc::clone(store);
            self.counting
                .spawn(async move { store.count_nodes().await });
        }
    }

    /// Waits for the running count; returns true if the cluster has a single node, `None` if no count is running.
    pub async fn next(&mut self) -> Option<bool> {
        let count = self.counting.join_next().await?;
        Some(count.ok().flatten() == Some(1))
    }
}
