//! Shows the status of each Configuration: at most every five seconds, and only where it differs.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::{Timestamp, Unit};
use leafhost_core::cluster::{Cluster, NodeSet};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use leafhost_core::status_store::{
    ConfigurationStates, Event, Regarding, ReportSet, StatusStore, WriteError,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::fold::{self, Seen};
use crate::metrics::{Metrics, Write};
use crate::releasing::{Earliest, WRITE_AGAIN};
use crate::task::Error;

/// How soon after a change the reports are looked at: those of many nodes come together.
const SOON: Duration = Duration::from_secs(1);
/// A Configuration is written at most so often.
const SPACING: Duration = Duration::from_secs(5);
/// How long a new Configuration waits for the first report.
const FIRST_REPORT: Duration = Duration::from_secs(10);

/// The problems of objects, for Events.
pub type Problems = Arc<BTreeMap<(Regarding, String), Event>>;

/// Runs without end. `brokers` is what is wrong with brokers; `problems` gets all that is wrong.
pub async fn run(
    cluster: &dyn Cluster,
    store: &dyn StatusStore,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    problems: watch::Sender<Problems>,
    metrics: &Metrics,
) -> Result<(), Error> {
    let mut task = Showing {
        store,
        metrics,
        leads: cluster.leads(),
        nodes: cluster.nodes(),
        instances: cluster.instances(),
        configurations: store.configurations(),
        reports: store.reports(),
        brokers,
        problems,
        paused: BTreeMap::new(),
        first_seen: BTreeMap::new(),
        rests: Instant::now(),
    };
    let mut next = Some(Instant::now());
    loop {
        let at = next.map(|next| next.max(task.rests));
        tokio::select! {
            changed = task.leads.changed() => changed.map_err(|_| Error("the lease"))?,
            changed = task.nodes.changed() => changed.map_err(|_| Error("nodes"))?,
            changed = task.instances.changed() => changed.map_err(|_| Error("Instances"))?,
            changed = task.configurations.changed() => changed.map_err(|_| Error("Configurations"))?,
            changed = task.reports.changed() => changed.map_err(|_| Error("reports"))?,
            changed = task.brokers.changed() => changed.map_err(|_| Error("the brokers' problems"))?,
            () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {
                next = task.pass().await;
                continue;
            }
        }
        let soon = Instant::now() + SOON;
        next = Some(next.map_or(soon, |next| next.min(soon)));
    }
}

struct Showing<'a> {
    store: &'a dyn StatusStore,
    metrics: &'a Metrics,
    leads: watch::Receiver<bool>,
    nodes: watch::Receiver<Arc<NodeSet>>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    configurations: watch::Receiver<Arc<ConfigurationStates>>,
    reports: watch::Receiver<Arc<ReportSet>>,
    brokers: watch::Receiver<Arc<Vec<Problem>>>,
    problems: watch::Sender<Problems>,
    /// Configurations that are not written before then.
    paused: BTreeMap<ConfigurationKey, Instant>,
    /// When each Configuration was seen first, by uid, as long as no node reports on it.
    first_seen: BTreeMap<String, Instant>,
    /// Nothing is written before then.
    rests: Instant,
}

impl Showing<'_> {
    /// Writes what differs and may be written now. Returns when to look again although nothing changes.
    async fn pass(&mut self) -> Option<Instant> {
        let nodes = Arc::clone(&self.nodes.borrow_and_update());
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let configurations = Arc::clone(&self.configurations.borrow_and_update());
        let reports = Arc::clone(&self.reports.borrow_and_update());
        let brokers = Arc::clone(&self.brokers.borrow_and_update());
        let leads = *self.leads.borrow_and_update();
        let is_read =
            nodes.complete && instances.complete && configurations.complete && reports.complete;
        if !leads || !is_read {
            return None;
        }
        let seen = Seen {
            nodes: &nodes,
            configurations: &configurations,
            reports: &reports,
            instances: &instances,
            brokers: &brokers,
        };
        // The API server keeps whole seconds.
        let now = Timestamp::now();
        let now = now.round(Unit::Second).unwrap_or(now);
        let folded = fold::fold(&seen, now);
        self.problems.send_if_modified(|told| {
            let differs = **told != folded.events;
            if differs {
                *told = Arc::new(folded.events);
            }
            differs
        });
        let now = Instant::now();
        self.paused.retain(|_, until| *until > now);
        let all = configurations.configurations.values();
        let uids: BTreeSet<&str> = all.map(|one| one.uid.as_str()).collect();
        self.first_seen.retain(|uid, _| uids.contains(uid.as_str()));
        let mut next = Earliest::default();
        for (key, status) in &folded.statuses {
            let Some(seen) = configurations.configurations.get(key) else {
                continue;
            };
            if seen.status.as_ref() == Some(status) {
                continue;
            }
            let waits = self.paused.get(key).copied();
            if let Some(until) = waits.or_else(|| self.waits_for_report(&seen.uid, status.nodes)) {
                next.by(until);
                continue;
            }
            if !*self.leads.borrow() {
                return None;
            }
            let outcome = self.store.show(key, seen, status).await;
            if matches!(
                outcome,
                Err(WriteError::Denied(_) | WriteError::NoAnswer(_))
            ) {
                self.metrics.failed(Write::Status);
            }
            let now = Instant::now();
            let wait = match outcome {
                Ok(()) | Err(WriteError::Outdated) => SPACING,
                Err(WriteError::Denied(error)) => {
                    tracing::warn!(configuration = %key, error, "cannot show the status of a Configuration");
                    next.by(now + WRITE_AGAIN);
                    WRITE_AGAIN
                }
                Err(WriteError::NoAnswer(error)) => {
                    tracing::warn!(configuration = %key, error, "cannot show the status of a Configuration");
                    self.rests = now + WRITE_AGAIN;
                    return Some(self.rests);
                }
            };
            self.paused.insert(key.clone(), now + wait);
        }
        next.0
    }

    /// Until when nothing is said of a new Configuration on which no node has reported yet.
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
