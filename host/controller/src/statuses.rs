//! Writes the status of each Configuration: at most every five seconds, and only if it differs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{Timestamp, Unit};
use leafhost_core::cluster::{Cluster, ClusterViews};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::status_store::{ConfigurationState, ConfigurationStatus, Regarding, WriteError};
use leafhost_core::wait::{SourceEnded, publish};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::fold::{self, ClusterState};
use crate::metrics::{Metrics, Write};
use crate::pass_schedule::{Earliest, PassSchedule};
use crate::writes::{Done, PLACES, Writes};

/// Delay between a change and the pass that handles it; the reports of many nodes come together.
const SOON: Duration = Duration::from_secs(1);
/// Shortest interval between two writes of a Configuration.
const SPACING: Duration = Duration::from_secs(5);
/// Time that a new Configuration waits for its first report.
const FIRST_REPORT: Duration = Duration::from_secs(10);

/// Messages of problems by object and reason, for Events.
pub type Problems = Arc<BTreeMap<(Regarding, String), String>>;

/// A Configuration as it was seen, and the status to write.
type Job = (Arc<ConfigurationState>, ConfigurationStatus);

/// Writes statuses while this controller leads; returns only if a source ends. `brokers` are the problems of brokers, `restarts` those of
/// pods whose device is gone; `problems` gets all problems.
pub async fn run(
    cluster: &dyn Cluster,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    restarts: watch::Receiver<Arc<Vec<Problem>>>,
    problems: watch::Sender<Problems>,
    metrics: &Metrics,
) -> Result<(), SourceEnded> {
    let mut task = StatusWriter {
        cluster,
        metrics,
        views: cluster.views(),
        brokers,
        restarts,
        problems,
        writes: Writes::new(PLACES),
        attempts: Attempts::default(),
        first_seen: BTreeMap::new(),
    };
    let mut pace = PassSchedule::new(SOON);
    loop {
        tokio::select! {
            changed = task.views.leads.changed() => changed.map_err(|_| SourceEnded("the lease"))?,
            changed = task.views.nodes.changed() => changed.map_err(|_| SourceEnded("nodes"))?,
            changed = task.views.instances.changed() => changed.map_err(|_| SourceEnded("Instances"))?,
            changed = task.views.configurations.changed() => changed.map_err(|_| SourceEnded("Configurations"))?,
            changed = task.views.reports.changed() => changed.map_err(|_| SourceEnded("reports"))?,
            changed = task.views.names.changed() => changed.map_err(|_| SourceEnded("ResourceNames"))?,
            changed = task.views.classes.changed() => changed.map_err(|_| SourceEnded("DeviceClasses"))?,
            changed = task.brokers.changed() => changed.map_err(|_| SourceEnded("the brokers' problems"))?,
            changed = task.restarts.changed() => changed.map_err(|_| SourceEnded("the problems of restarts"))?,
            done = task.writes.done() => {
                for one in done {
                    task.note(one);
                }
                task.begin();
            }
            () = pace.due() => {
                let next = task.look();
                pace.looked(next);
                task.begin();
                continue;
            }
        }
        pace.changed();
    }
}

struct StatusWriter<'a> {
    cluster: &'a dyn Cluster,
    metrics: &'a Metrics,
    views: ClusterViews,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    restarts: watch::Receiver<Arc<Vec<Problem>>>,
    problems: watch::Sender<Problems>,
    writes: Writes<'a, ConfigurationKey, Job>,
    attempts: Attempts<ConfigurationKey, (), ()>,
    /// Time at which each Configuration was first seen, by uid, as long as no node reports on it.
    first_seen: BTreeMap<String, Instant>,
}

impl StatusWriter<'_> {
    /// Plans the statuses that differ and may be written now. Returns the time of the next pass if nothing changes.
    fn look(&mut self) -> Option<Instant> {
        let nodes = Arc::clone(&self.views.nodes.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let configurations = Arc::clone(&self.views.configurations.borrow_and_update());
        let reports = Arc::clone(&self.views.reports.borrow_and_update());
        let names = Arc::clone(&self.views.names.borrow_and_update());
        let brokers = Arc::clone(&self.brokers.borrow_and_update());
        let restarts = Arc::clone(&self.restarts.borrow_and_update());
        let classes = Arc::clone(&self.views.classes.borrow_and_update());
        let leads = *self.views.leads.borrow_and_update();
        let is_read = nodes.complete
            && instances.complete
            && configurations.complete
            && reports.complete
            && names.is_known;
        if !leads {
            // The next leader starts without this state, too.
            self.attempts = Attempts::default();
        }
        if !leads || !is_read {
            self.writes.plan([]);
            return None;
        }
        let state = ClusterState {
            nodes: &nodes,
            configurations: &configurations,
            reports: &reports,
            instances: &instances,
            names: &names.names,
            brokers: &brokers,
            restarts: &restarts,
            classes: &classes,
        };
        // The API server keeps whole seconds.
        let now = Timestamp::now();
        let now = now.round(Unit::Second).unwrap_or(now);
        let folded = fold::fold(&state, now);
        publish(&self.problems, Arc::new(folded.events));
        let now = Instant::now();
        let all = configurations.configurations.values();
        let uids: BTreeSet<&str> = all.map(|one| one.uid.as_str()).collect();
        self.first_seen.retain(|uid, _| uids.contains(uid.as_str()));
        let differs = |(key, status): (ConfigurationKey, ConfigurationStatus)| {
            let seen = configurations.configurations.get(&key)?;
            let differs = seen.status.as_ref() != Some(&status);
            differs.then(|| (key, (Arc::clone(seen), status)))
        };
        let differing: BTreeMap<ConfigurationKey, Job> =
            folded.statuses.into_iter().filter_map(differs).collect();
        self.attempts.forget(|key| differing.contains_key(key), now);
        let mut next = Earliest::default();
        let mut due = Vec::new();
        for (key, (seen, status)) in differing {
            let later = self.attempts.later(&key, &(), &(), now);
            if let Some(until) = later.or_else(|| self.waits_for_report(&seen.uid, status.nodes)) {
                next.by(until);
            } else {
                due.push((key.namespace().to_owned(), key, (seen, status)));
            }
        }
        self.writes.plan(due);
        next.0
    }

    fn begin(&mut self) {
        if !*self.views.leads.borrow() {
            return;
        }
        let cluster = self.cluster;
        self.writes
            .begin(|key: ConfigurationKey, (seen, status): Job| async move {
                let answer = cluster.show(&key, &seen, &status).await;
                ((seen, status), answer)
            });
    }

    /// Records the outcome of a write.
    fn note(&mut self, done: Done<ConfigurationKey, Job>) {
        if let Err(error @ (WriteError::Denied(_) | WriteError::NoAnswer { .. })) = &done.answer {
            let error = error.to_string();
            tracing::warn!(configuration = %done.key, error, "cannot write the status of a Configuration");
            self.metrics.failed(Write::Status);
        }
        self.attempts
            .tried(done.key, ((), ()), &done.answer, SPACING, done.at);
    }

    /// Returns the time until which a new Configuration without reports gets no status.
    fn waits_for_report(&mut self, uid: &str, nodes: usize) -> Option<Instant> {
        if nodes > 0 {
            self.first_seen.remove(uid);
            return None;
        }
        let now = Instant::now();
        let first = *self.first_seen.entry(uid.to_owned()).or_insert(now);
        Some(first + FIRST_REPORT).filter(|until| *until > now)
    }
}

#[cfg(test)]
mod tests;
