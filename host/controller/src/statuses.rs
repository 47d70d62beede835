//! Writes the status of each Configuration: at most every five seconds, and only if it differs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{Timestamp, Unit};
use leafhost_core::cluster::{Cluster, ClusterViews};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::status_store::{ConfigurationState, ConfigurationStatus, Regarding, WriteError};
use leafhost_core::wait::{changed, publish};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::fold::{self, ClusterState};
use crate::metrics::{Metrics, Write};
use crate::writes::{Done, PLACES, Step, Writes};

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

/// Writes statuses while this controller leads. `brokers` are the problems of brokers, `restarts` those of
/// pods whose device is gone; `problems` gets all problems.
pub async fn run(
    cluster: &dyn Cluster,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    restarts: watch::Receiver<Arc<Vec<Problem>>>,
    problems: watch::Sender<Problems>,
    metrics: &Metrics,
) {
    let views = cluster.views();
    let write = move |key: ConfigurationKey, (seen, status): Job| async move {
        let answer = cluster.show(&key, &seen, &status).await;
        ((seen, status), answer)
    };
    let times = (SOON, SPACING);
    let mut task = StatusWriter {
        metrics,
        writes: Writes::new(views.leads.clone(), PLACES, times, |_| ((), ()), write),
        views,
        brokers,
        restarts,
        problems,
        first_seen: BTreeMap::new(),
    };
    loop {
        tokio::select! {
            biased;
            () = changed(&mut task.views.nodes) => task.writes.changed(),
            () = changed(&mut task.views.instances) => task.writes.changed(),
            () = changed(&mut task.views.configurations) => task.writes.changed(),
            () = changed(&mut task.views.reports) => task.writes.changed(),
            () = changed(&mut task.views.names) => task.writes.changed(),
            () = changed(&mut task.views.classes) => task.writes.changed(),
            () = changed(&mut task.brokers) => task.writes.changed(),
            () = changed(&mut task.restarts) => task.writes.changed(),
            step = task.writes.step() => match step {
                Step::Ended(all) => all.iter().for_each(|one| task.note(one)),
                Step::Pass => task.look(),
            },
        }
    }
}

struct StatusWriter<'a> {
    metrics: &'a Metrics,
    views: ClusterViews,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    restarts: watch::Receiver<Arc<Vec<Problem>>>,
    problems: watch::Sender<Problems>,
    writes: Writes<'a, ConfigurationKey, Job>,
    /// Time at which each Configuration was first seen, by uid, as long as no node reports on it.
    first_seen: BTreeMap<String, Instant>,
}

impl StatusWriter<'_> {
    /// Plans the statuses that differ.
    fn look(&mut self) {
        let nodes = Arc::clone(&self.views.nodes.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let configurations = Arc::clone(&self.views.configurations.borrow_and_update());
        let reports = Arc::clone(&self.views.reports.borrow_and_update());
        let names = Arc::clone(&self.views.names.borrow_and_update());
        let brokers = Arc::clone(&self.brokers.borrow_and_update());
        let restarts = Arc::clone(&self.restarts.borrow_and_update());
        let classes = Arc::clone(&self.views.classes.borrow_and_update());
        let is_read = nodes.complete
            && instances.complete
            && configurations.complete
            && reports.complete
            && names.is_known;
        if !self.writes.leads() || !is_read {
            return;
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
            differs.then(|| {
                let job = (Arc::clone(seen), status);
                (key.namespace().to_owned(), key, job)
            })
        };
        let jobs = folded.statuses.into_iter().filter_map(differs);
        // A new Configuration waits for its first report.
        self.writes.plan(jobs, None, |_, (seen, status)| {
            if status.nodes > 0 {
                self.first_seen.remove(&seen.uid);
                return None;
            }
            let first = self.first_seen.entry(seen.uid.clone()).or_insert(now);
            Some(*first + FIRST_REPORT)
        });
    }

    /// Records the outcome of a write.
    fn note(&self, done: &Done<ConfigurationKey, Job>) {
        if let Err(error @ (WriteError::Denied(_) | WriteError::NoAnswer { .. })) = &done.answer {
            let error = error.to_string();
            tracing::warn!(configuration = %done.key, error, "cannot write the status of a Configuration");
            self.metrics.failed(Write::Status);
        }
    }
}

#[cfg(test)]
mod tests;
