//! Task that watches the cluster, plans after each change, and writes what the plan contains.

use std::collections::BTreeSet;
use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::brokers::{Brokers, Change, Object, ObjectKey, ObjectSet};
use leafhost_core::cluster::{Cluster, ClusterViews};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::{SourceEnded, publish};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::failed::Failed;
use super::plan::{Plan, World, plan};
use super::restarts::Restarts;
use crate::attempts::Attempts;
use crate::metrics::{Metrics, Write};
use crate::pass_schedule::{Earliest, PassSchedule, SOON, time_until};
use crate::writes::{Done, PLACES, Writes};

/// Time within which the watch should show a write.
const SEEN: Duration = Duration::from_secs(10);

/// Creates the brokers of a cluster while this controller leads.
pub struct BrokerTask {
    brokers: Arc<dyn Brokers>,
    views: ClusterViews,
    objects: watch::Receiver<Arc<ObjectSet>>,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    metrics: Arc<Metrics>,
    writes: Writes<'static, ObjectKey, Job>,
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

/// Kind of a change, and its digest or uid, without the body.
type ChangeId = (Discriminant<Change>, String);

fn id(change: &Change) -> ChangeId {
    let text = match change {
        Change::Create(wanted) | Change::Replace { wanted, .. } => &wanted.made_of,
        Change::Delete { uid, .. } => uid,
    };
    (discriminant(change), text.clone())
}

impl BrokerTask {
    /// Creates the task for a cluster. `problems` gets the sorted broker problems of Configurations; it is empty while another controller
    /// leads.
    pub fn new(
        cluster: &dyn Cluster,
        brokers: Arc<dyn Brokers>,
        problems: watch::Sender<Arc<Vec<Problem>>>,
        metrics: Arc<Metrics>,
    ) -> Self {
        Self {
            views: cluster.views(),
            objects: brokers.objects(),
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
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        let mut pace = PassSchedule::new(SOON);
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = self.views.leads.changed() => changed.map_err(|_| SourceEnded("the lease"))?,
                changed = self.views.nodes.changed() => changed.map_err(|_| SourceEnded("nodes"))?,
                changed = self.views.manifests.changed() => {
                    changed.map_err(|_| SourceEnded("Configurations"))?;
                    // The plan is outdated.
                    self.writes.plan([]);
                }
                changed = self.views.instances.changed() => changed.map_err(|_| SourceEnded("Instances"))?,
                changed = self.views.names.changed() => changed.map_err(|_| SourceEnded("ResourceNames"))?,
                changed = self.objects.changed() => changed.map_err(|_| SourceEnded("pods, jobs and services"))?,
                done = self.writes.done() => {
                    for one in done {
                        self.note(one);
                    }
                    self.begin();
                }
                () = pace.due() => {
                    let next = self.look();
                    pace.looked(next);
                    self.begin();
                    continue;
                }
            }
            pace.changed();
        }
    }

    /// Plans the writes. Returns the time of the next pass if nothing changes.
    fn look(&mut self) -> Option<Instant> {
        let nodes = Arc::clone(&self.views.nodes.borrow_and_update());
        let manifests = Arc::clone(&self.views.manifests.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let objects = Arc::clone(&self.objects.borrow_and_update());
        let names = Arc::clone(&self.views.names.borrow_and_update());
        let is_leader = *self.views.leads.borrow_and_update();
        let is_read = nodes.complete
            && manifests.complete
            && instances.complete
            && objects.complete
            && names.is_known;
        if !is_leader {
            // The next leader starts without this state, too.
            self.attempts = Attempts::default();
            self.failed = Failed::default();
            self.publish(Vec::new());
        }
        if !is_leader || !is_read {
            self.writes.plan([]);
            return None;
        }
        let world = World {
            manifests: &manifests.manifests,
            instances: &instances.instances,
            objects: &objects.objects,
            nodes: &nodes.nodes,
            names: &names.names,
        };
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Plan {
            changes,
            mut problems,
            next: planned,
            pods,
        } = plan(&world, &mut self.restarts, clock);
        self.restarts.keep(&pods);
        let changed: BTreeSet<_> = changes.iter().map(|(_, change)| change.key()).collect();
        self.attempts.forget(|key| changed.contains(key), now);
        self.failed.forget(|key| changed.contains(key));
        let mut next = Earliest(planned.map(|planned| now + time_until(planned, clock)));
        let mut due = Vec::new();
        for (configuration, change) in changes {
            let key = change.key().clone();
            let there = world.objects.get(&key).cloned();
            let later = self.attempts.later(&key, &id(&change), &there, now);
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
    fn begin(&mut self) {
        if !*self.views.leads.borrow() || self.views.manifests.has_changed().unwrap_or(true) {
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

    fn note(&mut self, done: Done<ObjectKey, Job>) {
        let Done {
            key,
            value: job,
            answer,
            at,
            ..
        } = done;
        log(&job.change, answer.as_ref().err());
        if !matches!(answer, Ok(()) | Err(WriteError::Outdated)) {
            self.metrics.failed(Write::Broker);
        }
        let what = id(&job.change);
        self.attempts
            .tried(key.clone(), (what, job.there), &answer, SEEN, at);
        self.failed.note(key, job.configuration, answer);
    }

    fn publish(&self, mut problems: Vec<Problem>) {
        problems.sort();
        let published = Arc::clone(&self.problems.borrow());
        for problem in problems
            .iter()
            .filter(|problem| !published.contains(problem))
        {
            tracing::warn!(reason = problem.reason(), subject = %problem.subject(), "{problem}");
        }
        publish(&self.problems, Arc::new(problems));
    }
}

fn log(change: &Change, error: Option<&WriteError>) {
    let object = change.key();
    match (change, error) {
        (Change::Create(_), None) => tracing::info!(%object, "created"),
        (Change::Replace { .. }, None) => tracing::info!(%object, "changed"),
        (Change::Delete { .. }, None) => tracing::info!(%object, "deleted"),
        (_, Some(error)) => tracing::debug!(%object, %error, "not written"),
    }
}

#[cfg(test)]
mod tests;
