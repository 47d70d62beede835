//! The task: looks at what is there whenever it changes, and writes what follows.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::brokers::{Brokers, Change, ManifestSet, ObjectSet, WriteError};
use leafhost_core::cluster::NodeSet;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use super::attempts::Attempts;
use super::plan::{Plan, World, plan};
use super::restarts::Restarts;
use crate::Error;
use crate::metrics::{Metrics, Write};

/// How soon after a change it acts: many come together.
const SOON: Duration = Duration::from_millis(100);

/// Makes the brokers of a cluster while it leads.
pub struct BrokerTask {
    brokers: Arc<dyn Brokers>,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    metrics: Arc<Metrics>,
    attempts: Attempts,
    restarts: Restarts,
}

impl BrokerTask {
    /// One for this cluster. `problems` gets what is wrong with the brokers of Configurations, sorted; nothing while another controller acts.
    pub fn new(
        brokers: Arc<dyn Brokers>,
        problems: watch::Sender<Arc<Vec<Problem>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            brokers,
            problems,
            metrics,
            attempts: Attempts::default(),
            restarts: Restarts::default(),
        }
    }

    /// Runs until `shutdown`.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        let mut leads = self.brokers.leads();
        let mut nodes = self.brokers.nodes();
        let mut manifests = self.brokers.manifests();
        let mut instances = self.brokers.instances();
        let mut objects = self.brokers.objects();
        let mut next = Some(Instant::now());
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = leads.changed() => changed.map_err(|_| Error("the lease"))?,
                changed = nodes.changed() => changed.map_err(|_| Error("nodes"))?,
                changed = manifests.changed() => changed.map_err(|_| Error("Configurations"))?,
                changed = instances.changed() => changed.map_err(|_| Error("Instances"))?,
                changed = objects.changed() => changed.map_err(|_| Error("pods, jobs and services"))?,
                () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {
                    let seen = Seen {
                        nodes: nodes.borrow_and_update().clone(),
                        manifests: manifests.borrow_and_update().clone(),
                        instances: instances.borrow_and_update().clone(),
                        objects: objects.borrow_and_update().clone(),
                    };
                    let is_leader = *leads.borrow_and_update();
                    next = if is_leader && seen.is_complete() {
                        // What was planned holds no longer.
                        let is_outdated = || {
                            leads.has_changed().unwrap_or(true) || manifests.has_changed().unwrap_or(true)
                        };
                        tokio::select! {
                            () = shutdown.cancelled() => return Ok(()),
                            next = self.pass(&seen, is_outdated) => next,
                        }
                    } else {
                        if !is_leader {
                            self.publish(Vec::new());
                        }
                        None
                    };
                    continue;
                }
            }
            let soon = Instant::now() + SOON;
            next = Some(next.map_or(soon, |next| next.min(soon)));
        }
    }

    /// Writes what is to be written. Returns when to look again although nothing changes.
    async fn pass(&mut self, seen: &Seen, is_outdated: impl Fn() -> bool) -> Option<Instant> {
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Plan {
            changes,
            mut problems,
            next,
            pods,
        } = plan(&seen.world(), &mut self.restarts, clock);
        self.restarts.keep(&pods);
        let changed: BTreeSet<_> = changes.iter().map(|(_, change)| change.key()).collect();
        self.attempts.keep(&changed);
        let wait = next.map(|next| Duration::try_from(next.duration_since(clock)));
        let mut next = wait.map(|wait| now + wait.unwrap_or_default().max(SOON));
        let mut by = |moment: Instant| next = Some(next.map_or(moment, |next| next.min(moment)));
        for (configuration, change) in &changes {
            let there = seen.objects.objects.get(change.key());
            if let Some(later) = self.attempts.later(change, there, Instant::now()) {
                by(later);
                continue;
            }
            if is_outdated() {
                break;
            }
            let written = self.brokers.write(change).await;
            log(change, written.as_ref().err());
            if !matches!(written, Ok(()) | Err(WriteError::Conflict)) {
                self.metrics.failed(Write::Broker);
            }
            // The others would fail in the same way.
            let is_over = matches!(written, Err(WriteError::Unavailable(_)));
            by(self
                .attempts
                .tried(configuration, change, there, written, Instant::now()));
            if is_over {
                break;
            }
        }
        problems.extend(self.attempts.problems());
        self.publish(problems);
        next
    }

    fn publish(&self, mut problems: Vec<Problem>) {
        problems.sort();
        self.problems.send_if_modified(|published| {
            for problem in problems.iter().filter(|problem| !published.contains(problem)) {
                tracing::warn!(reason = problem.reason(), subject = %problem.subject(), "{problem}");
            }
            let differs = **published != problems;
            if differs {
                *published = Arc::new(problems);
            }
            differs
        });
    }
}

fn log(change: &Change, error: Option<&WriteError>) {
    let object = change.key();
    match (change, error) {
        (Change::Create { .. }, None) => tracing::info!(%object, "created"),
        (Change::Replace { .. }, None) => tracing::info!(%object, "changed"),
        (Change::Delete { .. }, None) => tracing::info!(%object, "deleted"),
        (_, Some(error)) => tracing::debug!(%object, %error, "not written"),
    }
}

/// What a pass looks at.
struct Seen {
    nodes: Arc<NodeSet>,
    manifests: Arc<ManifestSet>,
    instances: Arc<InstanceSet>,
    objects: Arc<ObjectSet>,
}

impl Seen {
    fn is_complete(&self) -> bool {
        self.nodes.complete
            && self.manifests.complete
            && self.instances.complete
            && self.objects.complete
    }

    fn world(&self) -> World<'_> {
        World {
            manifests: &self.manifests.manifests,
            instances: &self.instances.instances,
            objects: &self.objects.objects,
            nodes: &self.nodes.nodes,
        }
    }
}

#[cfg(test)]
mod tests;
