//! The task: looks at nodes and Instances whenever they change, and writes what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::cluster::{Cluster, NodeSet, ReadError};
use leafhost_core::ports::{InstanceSet, StoreError};
use leafhost_core::text::chain;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::release::{self, Absence, Verdict};

/// How soon after a change the controller acts: many come together.
const SOON: Duration = Duration::from_millis(100);
/// When it looks again at a node that is away and whose pods may still use devices, and when it tries again what failed.
const AGAIN: Duration = Duration::from_secs(10);

/// Why the controller ended.
#[derive(Debug, thiserror::Error)]
#[error("the source of {0} has ended")]
pub struct Error(&'static str);

/// The controller.
pub struct Controller {
    cluster: Arc<dyn Cluster>,
}

impl Controller {
    /// One that acts on this cluster while it leads.
    pub fn new(cluster: Arc<dyn Cluster>) -> Self {
        Self { cluster }
    }

    /// Runs until `shutdown`.
    pub async fn run(self, shutdown: CancellationToken) -> Result<(), Error> {
        let mut leads = self.cluster.leads();
        let mut nodes = self.cluster.nodes();
        let mut instances = self.cluster.instances();
        let mut next = Some(Instant::now());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = leads.changed() => changed.map_err(|_| Error("the lease"))?,
                changed = nodes.changed() => changed.map_err(|_| Error("nodes"))?,
                changed = instances.changed() => changed.map_err(|_| Error("Instances"))?,
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    let (nodes, instances) = (nodes.borrow_and_update().clone(), instances.borrow_and_update().clone());
                    let is_known = nodes.complete && instances.complete;
                    next = if *leads.borrow_and_update() && is_known {
                        let wait = self.pass(&nodes, &instances).await;
                        wait.map(|wait| Instant::now() + wait)
                    } else {
                        None
                    };
                    continue;
                }
            }
            let soon = Instant::now() + SOON;
            next = Some(next.map_or(soon, |next| next.min(soon)));
        }
    }

    /// Releases what absent nodes left behind. Returns when to look again although nothing changes.
    async fn pass(&self, nodes: &NodeSet, instances: &InstanceSet) -> Option<Duration> {
        let named: BTreeSet<&str> = instances
            .instances
            .values()
            .flat_map(|one| release::nodes(one))
            .collect();
        let (mut absent, mut wait) = (BTreeMap::new(), None::<Duration>);
        let mut by = |moment: Duration| wait = Some(wait.map_or(moment, |wait| wait.min(moment)));
        for node in named {
            match self.absence(nodes, node).await {
                Ok(Finding::Present) => {}
                Ok(Finding::PresentFor(time)) => by(time),
                Ok(Finding::Absent(absence)) => {
                    if matches!(&absence, Absence::Away(requested) if !requested.is_empty()) {
                        by(AGAIN);
                    }
                    absent.insert(node, absence);
                }
                Err(error) => {
                    tracing::warn!(node, %error, "cannot tell whether a node is gone; its slots stay");
                    by(AGAIN);
                }
            }
        }
        for (key, instance) in &instances.instances {
            let Some(change) = release::release(instance, &absent) else {
                continue;
            };
            match self.cluster.write(instance, &change).await {
                Ok(()) => {
                    let nodes = release::nodes(instance);
                    let gone: Vec<&str> = nodes
                        .into_iter()
                        .filter(|node| absent.contains_key(node))
                        .collect();
                    tracing::info!(instance = %key, ?gone, "released what nodes left behind that are gone");
                }
                // The next change shows what is there.
                Err(StoreError::Conflict { .. } | StoreError::Gone { .. }) => by(SOON),
                Err(error) => {
                    tracing::warn!(
                        error = chain(&error),
                        "cannot release what a node left behind"
                    );
                    by(AGAIN);
                }
            }
        }
        wait
    }

    async fn absence(&self, nodes: &NodeSet, node: &str) -> Result<Finding, ReadError> {
        let Some(state) = nodes.nodes.get(node) else {
            // The Instance may be newer than what is known of the nodes.
            let is_there = self.cluster.has_node(node).await?;
            return Ok(if is_there {
                Finding::PresentFor(AGAIN)
            } else {
                Finding::Absent(Absence::Deleted)
            });
        };
        let now = Timestamp::now();
        Ok(match release::verdict(state, now) {
            Verdict::Present => Finding::Present,
            Verdict::PresentUntil(then) => {
                let left = Duration::try_from(then.duration_since(now)).unwrap_or_default();
                Finding::PresentFor(left.max(SOON))
            }
            // Its pods are deleted by force, and none of them runs.
            Verdict::OutOfService => Finding::Absent(Absence::Away(BTreeSet::new())),
            Verdict::NotReady => {
                Finding::Absent(Absence::Away(self.cluster.requested(node).await?))
            }
        })
    }
}

enum Finding {
    Present,
    PresentFor(Duration),
    Absent(Absence),
}

#[cfg(test)]
mod tests;
