//! The reconcile task: devices and Instances → plan → writes. It writes everything of an Instance except its slots and their holders.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::fair::round_robin;
use leafhost_core::instance::{Edit, HeldSlots, Instance, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, StoreError};
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use leafhost_core::timeouts;
use leafhost_core::wait::{SourceEnded, publish, until};
use leafhost_core::write_limiter::WriteLimiter;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::plan::{Plan, Reservations, is_local_to, plan};

/// Number of conflicts in a row after which the next attempt waits for the backoff.
const CONFLICTS: u32 = 3;

/// Longest pause after a failure, unless the store asks for a longer one: no event reports that a right was granted or a folder made
/// writable.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// Report of the reconcile task.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReconcileReport {
    /// True once the Instances have matched the devices after Configurations and handlers were read.
    pub done_once: bool,
    /// Failed writes, and devices for which no name is free.
    pub problems: Vec<Problem>,
}

/// Task that writes Instances.
pub struct ReconcileTask {
    node: String,
    store: Arc<dyn InstanceStore>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    report: watch::Sender<ReconcileReport>,
    metrics: Arc<Metrics>,
    held: watch::Receiver<Arc<HeldSlots>>,
    /// Limiter of repeatedly creating or joining the same Instance.
    joins: WriteLimiter<InstanceKey>,
    /// Time of the next join that waits.
    next_join: Option<Instant>,
    /// Instances whose last write failed. Each is paused separately, whatever else changes.
    failing: BTreeMap<InstanceKey, Failing>,
}

/// Instance that could not be written.
struct Failing {
    /// Cause and remedy.
    error: String,
    /// Number of failed writes in a row.
    failures: u32,
    /// Time of the next attempt.
    retry: Instant,
    /// True if the store takes no writes at all.
    is_unavailable: bool,
}

impl ReconcileTask {
    /// Creates the task; returns it with the receiver of its reports.
    pub fn new(
        node: String,
        store: Arc<dyn InstanceStore>,
        devices: watch::Receiver<Arc<DeviceSnapshot>>,
        held: watch::Receiver<Arc<HeldSlots>>,
        metrics: Arc<Metrics>,
    ) -> (Self, watch::Receiver<ReconcileReport>) {
        let (report, seen) = watch::channel(ReconcileReport::default());
        let task = Self {
            node,
            instances: store.instances(),
            store,
            devices,
            report,
            metrics,
            held,
            joins: WriteLimiter::default(),
            next_join: None,
            failing: BTreeMap::new(),
        };
        (task, seen)
    }

    /// Runs until `shutdown`. A batch that is being written is finished first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        self.devices.mark_changed();
        self.instances.mark_changed();
        loop {
            let next = self.next();
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                changed = self.devices.changed() => changed.map_err(|_| SourceEnded("devices"))?,
                changed = self.instances.changed() => changed.map_err(|_| SourceEnded("Instances"))?,
                () = until(next) => {}
            }
            self.reconcile(&shutdown).await;
        }
    }

    /// Returns the time of the next step that no event announces.
    fn next(&self) -> Option<Instant> {
        let retries = self.failing.values().map(|failing| failing.retry);
        retries.chain(self.next_join).min()
    }

    async fn reconcile(&mut self, shutdown: &CancellationToken) {
        let mut outdated: Vec<Failed> = Vec::new();
        let mut read = false;
        let mut problems = Vec::new();
        let begun = Instant::now();
        let mut reservations = Reservations::default();
        let collects = self.store.collects_garbage();
        for _ in 0..CONFLICTS {
            let snapshot = Arc::clone(&self.devices.borrow_and_update());
            let instances = Arc::clone(&self.instances.borrow_and_update());
            read = snapshot.read && instances.complete;
            reservations.held = Arc::clone(&self.held.borrow());
            let Plan {
                mut changes,
                problems: nameless,
            } = plan(&self.node, &snapshot, &instances, &reservations, collects);
            problems = nameless;
            let planned: BTreeSet<InstanceKey> = changes.iter().map(Change::key).collect();
            self.failing.retain(|key, _| planned.contains(key));
            self.next_join = None;
            changes.retain(|change| {
                let ChangeInfo { key, enters, .. } = ChangeInfo::of(change);
                // It failed before this round, and its pause is not over.
                let failing = self.failing.get(&key);
                if failing.is_some_and(|failing| failing.retry > begun) {
                    return false;
                }
                let next = self.joins.next(&key, Instant::now());
                let next = next.filter(|_| enters == Some(true));
                self.next_join = self.next_join.into_iter().chain(next).min();
                next.is_none()
            });
            outdated.clear();
            if changes.is_empty() {
                break;
            }
            // Many Instances of one namespace must not delay those of another.
            let changes = round_robin(changes, |change| change.key().namespace);
            let (errors, whole) = self.apply(changes, &mut reservations.taken, shutdown).await;
            // The rest is planned again, in the next round if the devices have changed.
            read &= whole;
            // Retrying an unavailable store at once does not help.
            let failed;
            (outdated, failed) = errors
                .into_iter()
                .partition(|(_, error)| error.is_outdated());
            self.leave_alone(&failed);
            if outdated.is_empty() {
                break;
            }
        }
        self.leave_alone(&outdated);
        // Does not mark the value as seen, because it may also have writes of others.
        let instances = Arc::clone(&self.instances.borrow());
        self.metrics.count_instances(&instances, &self.node);
        let interrupted = instances.interrupted.clone();
        problems.extend(interrupted.map(|error| Problem::InstancesNotWatched { error }));
        self.conclude(read && !self.is_barred(&instances), problems);
    }

    /// Pauses the Instances that failed. Those that failed together are tried again together.
    fn leave_alone(&mut self, errors: &[Failed]) {
        let mut waits: BTreeMap<u32, Duration> = BTreeMap::new();
        let now = Instant::now();
        for (key, error) in errors {
            let before = self.failing.get(key);
            let failures = before.map_or(0, |before| before.failures).saturating_add(1);
            let wait = waits
                .entry(failures)
                .or_insert_with(|| backoff::wait(failures).min(TRY_AGAIN));
            let wanted = match error {
                StoreError::Unavailable { retry_after, .. } => *retry_after,
                _ => None,
            };
            let wait = (*wait).max(wanted.unwrap_or_default());
            let failing = Failing {
                error: chain(error),
                failures,
                retry: now + wait.min(timeouts::BACKOFF_LAST),
                is_unavailable: matches!(error, StoreError::Unavailable { .. }),
            };
            self.failing.insert(key.clone(), failing);
        }
    }

    /// Returns true if the Instances as a whole cannot be written: the store says so, or several fail and none of this node is up to date.
    /// A single failing Instance is reported, and does not keep the agent from being ready.
    fn is_barred(&self, instances: &InstanceSet) -> bool {
        let is_well = |(key, instance): (&InstanceKey, &Arc<Instance>)| {
            !self.failing.contains_key(key) && instance.concerns(&self.node)
        };
        self.failing.values().any(|failing| failing.is_unavailable)
            || (self.failing.len() > 1 && !instances.instances.iter().any(is_well))
    }

    /// Applies the changes in batches; returns the failures, and true if all changes were applied. Stops early at `shutdown`, or if the
    /// devices change, since everything is then planned again.
    async fn apply(
        &mut self,
        changes: Vec<Change>,
        taken: &mut BTreeSet<InstanceKey>,
        shutdown: &CancellationToken,
    ) -> (Vec<Failed>, bool) {
        let mut errors = Vec::new();
        // An Instance that failed before may hang, so it is not in a batch with others. It gets its turn however often devices change.
        let (again, first): (Vec<_>, Vec<_>) = changes
            .into_iter()
            .partition(|change| self.failing.contains_key(&change.key()));
        let most = self.store.batch();
        let (mut first, mut again) = (batches(first, most), batches(again, most));
        loop {
            for batch in [first.next(), again.next()].into_iter().flatten() {
                errors.extend(self.apply_batch(batch, taken).await);
                if shutdown.is_cancelled() {
                    return (errors, false);
                }
            }
            if first.peek().is_none() && again.peek().is_none() {
                return (errors, true);
            }
            if self.devices.has_changed().unwrap_or(true) {
                return (errors, false);
            }
        }
    }

    /// Applies one batch of changes; returns the failures. Adds to `taken` the names that another device has.
    async fn apply_batch(
        &mut self,
        changes: Vec<Change>,
        taken: &mut BTreeSet<InstanceKey>,
    ) -> Vec<Failed> {
        let info: Vec<ChangeInfo> = changes.iter().map(ChangeInfo::of).collect();
        let results = self.store.apply(changes).await;
        let (mut errors, mut left) = (Vec::new(), Vec::new());
        for (result, info) in results.into_iter().zip(info) {
            let label = result.as_ref().err().map_or("ok", StoreError::label);
            self.metrics.count_write(info.kind, label);
            let error = match result {
                Ok(written) => {
                    self.failing.remove(&info.key);
                    match info.enters {
                        Some(true) => self.joins.record(info.key, Instant::now()),
                        Some(false) => self.joins.forget(&info.key),
                        None => {}
                    }
                    left.extend(written.filter(|instance| instance.spec.nodes.is_empty()));
                    continue;
                }
                Err(error) => error,
            };
            if let StoreError::AlreadyExists {
                key,
                found: Some(found),
            } = &error
                && let Some(device) = info.local_device
                && !is_ours(&self.node, found, &device)
            {
                // Another device has the name; ours gets a longer one. If the object is ours, after a lost answer, the task waits for its event.
                taken.insert(key.clone());
            }
            errors.push((info.key, error));
        }
        if !left.is_empty() {
            self.remove(left).await;
        }
        errors
    }

    /// Deletes Instances that this node was the last to leave, because others left at the same moment. Fails, as it must, if a node has
    /// joined since.
    async fn remove(&mut self, left: Vec<Arc<Instance>>) {
        let changes = left.iter().map(|instance| Change::delete(instance));
        for result in self.store.apply(changes.collect()).await {
            let label = result.as_ref().err().map_or("ok", StoreError::label);
            self.metrics.count_write("delete", label);
        }
    }

    fn conclude(&mut self, done: bool, mut problems: Vec<Problem>) {
        let first = self.failing.values().next();
        problems.extend(first.map(|failing| Problem::InstancesNotWritten {
            error: failing.error.clone(),
            more: self.failing.len() - 1,
        }));
        let report = ReconcileReport {
            done_once: self.report.borrow().done_once || done,
            problems,
        };
        publish(&self.report, report);
    }
}

/// Splits changes into batches.
fn batches(changes: Vec<Change>, most: usize) -> Peekable<impl Iterator<Item = Vec<Change>>> {
    let mut left = changes.into_iter();
    let batches = std::iter::from_fn(move || {
        let batch: Vec<Change> = left.by_ref().take(most.max(1)).collect();
        (!batch.is_empty()).then_some(batch)
    });
    batches.peekable()
}

/// Change that failed.
type Failed = (InstanceKey, StoreError);

/// Facts about a change that are needed once it was applied.
struct ChangeInfo {
    kind: &'static str,
    key: InstanceKey,
    /// True if it adds this node, false if it removes it.
    enters: Option<bool>,
    /// Id of the local device that is created.
    local_device: Option<String>,
}

impl ChangeInfo {
    fn of(change: &Change) -> Self {
        let (kind, enters) = match change {
            Change::Create(_) => ("create", Some(true)),
            Change::Update { edits, .. } => {
                let enters = edits.iter().find_map(|edit| match edit {
                    Edit::AddNode(_) => Some(true),
                    Edit::RemoveNode(_) => Some(false),
                    _ => None,
                });
                ("update", enters)
            }
            Change::Delete { .. } => ("delete", Some(false)),
        };
        let local_device = match change {
            Change::Create(instance) if !instance.spec.shared => instance.device_id(),
            _ => None,
        };
        Self {
            kind,
            key: change.key(),
            enters,
            local_device: local_device.map(str::to_owned),
        }
    }
}

/// Returns true if an Instance is of that local device of this node. Akri's agent wrote no id: then the name identifies the device.
fn is_ours(node: &str, found: &Instance, device: &str) -> bool {
    is_local_to(node, found) && found.device_id().is_none_or(|id| id == device)
}

#[cfg(test)]
mod tests;
