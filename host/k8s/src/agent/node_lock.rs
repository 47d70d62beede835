//! Lock of this agent's node: follows the pod for which the node is locked, and unlocks the node once that pod no longer needs the lock.

use std::collections::BTreeSet;
use std::time::Duration;

use k8s_openapi::api::core::v1::Node;
use kube::api::PartialObjectMeta;
use kube::{Api, Client};
use leafhost_core::backoff;
use leafhost_core::scheduling::{LockPort, NodeLock, NodeSeen};
use leafhost_core::tasks::Tasks;
use leafhost_core::wait::until;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::node_lock::{seen, set};
use crate::watch::{Event, Watch};

/// Field manager with which the lock is removed.
const MANAGER: &str = "leafhost";
/// Pause between two attempts.
const AGAIN: Duration = Duration::from_millis(100);
/// Maximum pause between attempts while the API server refuses.
const LONGEST: Duration = Duration::from_secs(10);

/// Follows the lock of a node until `tasks` end.
pub fn follow(client: &Client, node: &str, tasks: &mut Tasks) -> LockPort {
    let (locked, receiver) = watch::channel(None);
    let (done, finished) = watch::channel(BTreeSet::new());
    let nodes = Api::all(client.clone());
    let task = Task {
        node: node.to_owned(),
        watch: Watch::new(Api::clone(&nodes)).fields(&format!("metadata.name={node}")),
        nodes,
        locked,
        finished,
        seen: NodeSeen::default(),
        failures: 0,
    };
    tasks.add_loop("lock of the node", task.run());
    LockPort {
        locked: receiver,
        done,
    }
}

struct Task {
    node: String,
    nodes: Api<PartialObjectMeta<Node>>,
    watch: Watch<PartialObjectMeta<Node>>,
    locked: watch::Sender<Option<NodeLock>>,
    finished: watch::Receiver<BTreeSet<String>>,
    seen: NodeSeen,
    failures: u32,
}

impl Task {
    async fn run(mut self) {
        let mut next = None;
        loop {
            tokio::select! {
                event = self.watch.next_or_log("the lock of the node") => match event {
                    Event::InitApply(node) | Event::Apply(node) => self.take(seen(&node.metadata)),
                    Event::Delete(_) => self.take(NodeSeen::default()),
                    Event::Init | Event::InitDone(_) | Event::Resumed => {}
                },
                Ok(()) = self.finished.changed() => {}
                () = until(next) => {}
            }
            next = self.unlock().await;
        }
    }

    fn take(&mut self, seen: NodeSeen) {
        let lock = NodeLock::read(&seen.lock);
        self.seen = seen;
        crate::publish(&self.locked, lock);
    }

    /// Unlocks the node if its pod is done. Returns the time of the next attempt.
    async fn unlock(&mut self) -> Option<Instant> {
        let uid = self.locked.borrow().as_ref().map(|lock| lock.uid.clone());
        let uid = uid.filter(|uid| self.finished.borrow_and_update().contains(uid));
        let uid = uid?;
        let version = &self.seen.version;
        match set(&self.nodes, &self.node, version, None, MANAGER).await {
            Ok(Some(seen)) => {
                self.failures = 0;
                tracing::debug!(
                    uid,
                    "the node is unlocked: the pod no longer needs the lock"
                );
                self.take(seen);
                None
            }
            // The watch shows the newer state.
            Ok(None) => Some(Instant::now() + AGAIN),
            Err(failure) => {
                let error = failure.describe();
                tracing::warn!(error, "cannot unlock the node; retrying");
                self.failures = self.failures.saturating_add(1);
                Some(Instant::now() + backoff::doubled(AGAIN, self.failures, LONGEST))
            }
        }
    }
}
