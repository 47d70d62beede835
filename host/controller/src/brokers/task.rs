//! Task that watches the cluster, plans after each change, and writes what the plan contains.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::brokers::{
    Brokers, Change, ManifestSet, Object, ObjectKey, ObjectSet, WriteError,
};
use leafhost_core::cluster::NodeSet;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use leafhost_core::resource_names::NameSet;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failed::Failed;
use super::plan::{Plan, World, plan};
use super::restarts::Restarts;
use crate::Error;
use crate::attempts::Attempts;
use crate::metrics::{Metrics, Write};
use crate::pass_schedule::{Earliest, PassSchedule};
use crate::writes::{Answer as _, Done, PLACES, Writes};

/// Delay between a change and the pass that handles it; many changes come together.
const SOON: Duration = Duration::from_millis(100);
/// Time within which a write is expected to be seen.
const SEEN: Duration = Duration::from_secs(10);

/// Creates the brokers of a cluster while this controller leads.
pub struct BrokerTask {
    brokers: Arc<dyn Brokers>,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    metrics: Arc<Metrics>,
    writes: Writes<'static, ObjectKey, Job, Result<(), WriteError>>,
    attempts: Attempts<ObjectKey, ChangeId, Option<Arc<Object>>>,
    failed: Failed,
    restarts: Restarts,
}

/// A change that waits or is being written.
struct Job {
    configuration: ConfigurationKey,
    change: Change,
    /// Object before the change.
    there: Option<Arc<Object>>,
}

/// Digest or uid of a change, without the body.
#[derive(Debug, PartialEq, Eq)]
enum ChangeId {
    Create(String),
    Replace(String),
    Delete(String),
}

impl ChangeId {
    fn of(change: &Change) -> Self {
        match change {
            Change::Create { made_of, .. } => Self::Create(made_of.clone()),
            Change::Replace { made_of, .. } => Self::Replace(made_of.clone()),
            Change::Delete { uid, .. } => Self::Delete(uid.clone()),
        }
    }
}

impl BrokerTask {
    /// Creates the task for a cluster. `problems` gets the sorted broker problems of Configurations; it is empty while another controller
    /// leads.
    pub fn new(
        brokers: Arc<dyn Brokers>,
        problems: watch::Sender<Arc<Vec<Problem>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            brokers,
            problems,
            metrics,
            writes: Writes::new(PLACES),
            attempts: Attempts::default(),
            failed: Failed::default(),
            restarts: Restarts::default(),
        }
    }

    /// Runs until `shutdown` is cancelled.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        let mut leads = self.brokers.leads();
        let mut nodes = self.brokers.nodes();
        let mut manifests = self.brokers.manifests();
        let mut instances = self.brokers.instances();
        let mut objects = self.brokers.objects();
        let mut names = self.brokers.names();
        let mut pace = PassSchedule::new(SOON);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = leads.changed() => changed.map_err(|_| Error("the lease"))?,
                changed = nodes.changed() => changed.map_err(|_| Error("nodes"))?,
                changed = manifests.changed() => {
                    changed.map_err(|_| Error("Configurations"))?;
                    // The plan is outdated.
                    self.writes.plan([]);
                }
                changed = instances.changed() => changed.map_err(|_| Error("Instances"))?,
                changed = names.changed() => changed.map_err(|_| Error("ResourceNames"))?,
                changed = objects.changed() => changed.map_err(|_| Error("pods, jobs and services"))?,
                done = self.writes.done() => {
                    for one in done {
                        self.note(one);
                    }
                    self.begin(&leads, &manifests);
                }
                () = pace.due() => {
                    let begun = Instant::now();
                    let seen = ClusterSnapshot {
                        nodes: nodes.borrow_and_update().clone(),
                        manifests: manifests.borrow_and_update().clone(),
                        instances: instances.borrow_and_update().clone(),
                        objects: objects.borrow_and_update().clone(),
                        names: names.borrow_and_update().clone(),
                    };
                    let is_leader = *leads.borrow_and_update();
                    let next = self.look(&seen, is_leader);
                    pace.looked(begun, next);
                    self.begin(&leads, &manifests);
                    continue;
                }
            }
            pace.changed();
        }
    }

    /// Plans the writes. Returns the time of the next pass if nothing changes.
    fn look(&mut self, seen: &ClusterSnapshot, is_leader: bool) -> Option<Instant> {
        if !is_leader {
            // The next leader starts without this state, too.
            self.attempts = Attempts::default();
            self.failed = Failed::default();
            self.publish(Vec::new());
        }
        if !is_leader || !seen.is_complete() {
            self.writes.plan([]);
            return None;
        }
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Plan {
            changes,
            mut problems,
            next: planned,
            pods,
        } = plan(&seen.world(), &mut self.restarts, clock);
        self.restarts.keep(&pods);
        let changed: BTreeSet<_> = changes.iter().map(|(_, change)| change.key()).collect();
        self.attempts.forget(|key| changed.contains(key), now);
        self.failed.forget(|key| changed.contains(key));
        let mut next = Earliest::default();
        if let Some(planned) = planned {
            let wait = Duration::try_from(planned.duration_since(clock));
            next.by(now + wait.unwrap_or_default().max(SOON));
        }
        let mut due = Vec::new();
        for (configuration, change) in changes {
            let key = change.key().clone();
            let there = seen.objects.objects.get(&key).cloned();
            let later = self
                .attempts
                .later(&key, &ChangeId::of(&change), &there, now);
            if let Some(later) = later {
                next.by(later);
                continue;
            }
            let job = Job {
                configuration,
                change,
                there,
            };
            due.push((key.namespace.clone(), key, job));
        }
        self.writes.plan(due);
        problems.extend(self.failed.problems());
        self.publish(problems);
        next.0
    }

    /// Begins planned writes, unless the plan is outdated.
    fn begin(
        &mut self,
        leads: &watch::Receiver<bool>,
        manifests: &watch::Receiver<Arc<ManifestSet>>,
    ) {
        if !*leads.borrow() || manifests.has_changed().unwrap_or(true) {
            return;
        }
        let brokers = &self.brokers;
        self.writes.begin(|_, job: Job| {
            let brokers = Arc::clone(brokers);
            async move {
                let answer = brokers.write(&job.change).await;
                (job, answer)
            }
        });
    }

    fn note(&mut self, done: Done<ObjectKey, Job, Result<(), WriteError>>) {
        let Done {
            key,
            value: job,
            answer,
            at,
            ..
        } = done;
        log(&job.change, answer.as_ref().err());
        if !matches!(answer, Ok(()) | Err(WriteError::Conflict)) {
            self.metrics.failed(Write::Broker);
        }
        let what = ChangeId::of(&job.change);
        self.attempts
            .tried(key.clone(), (what, job.there), answer.outcome(), SEEN, at);
        self.failed.note(key, job.configuration, answer);
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

/// Snapshot of the cluster for one pass.
struct ClusterSnapshot {
    nodes: Arc<NodeSet>,
    manifests: Arc<ManifestSet>,
    instances: Arc<InstanceSet>,
    objects: Arc<ObjectSet>,
    names: Arc<NameSet>,
}

impl ClusterSnapshot {
    fn is_complete(&self) -> bool {
        self.nodes.complete
            && self.manifests.complete
            && self.instances.complete
            && self.objects.complete
            && self.names.is_known
    }

    fn world(&self) -> World<'_> {
        World {
            manifests: &self.manifests.manifests,
            instances: &self.instances.instances,
            objects: &self.objects.objects,
            nodes: &self.nodes.nodes,
            names: &self.names.names,
        }
    }
}

#[cfg(test)]
mod tests;
