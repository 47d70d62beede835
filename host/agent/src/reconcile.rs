//! The reconcile task: devices and Instances → plan → writes. All that is written of an Instance but its slots is written here.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::fair::in_turns;
use leafhost_core::instance::{Edit, HeldSlots, Instance, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, StoreError};
use leafhost_core::problem::Problem;
use leafhost_core::repeats::Repeats;
use leafhost_core::text::chain;
use leafhost_core::timeouts;
use leafhost_core::wait::{SourceEnded, until};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::plan::{Plan, Reservations, is_local_to, plan};

/// After this many conflicts in a row the next attempt waits for the backoff.
const CONFLICTS: u32 = 3;

/// What failed is tried again after this at the latest: nothing tells that a right was given back or a folder made writable.
const TRY_AGAIN: Duration = Duration::from_secs(30);

/// How reconciling goes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReconcileReport {
    /// Whether the Instances have once said what was found after Configurations and handlers had been read.
    pub done_once: bool,
    /// What cannot be written, and devices for which no name is free.
    pub problems: Vec<Problem>,
}

/// The task.
pub struct ReconcileTask {
    node: String,
    store: Arc<dyn InstanceStore>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    report: watch::Sender<ReconcileReport>,
    metrics: Arc<Metrics>,
    held: watch::Receiver<Arc<HeldSlots>>,
    /// The Instances that this node has created or joined.
    joins: Repeats<InstanceKey>,
    /// When a join that waits is due.
    next_join: Option<Instant>,
    /// The Instances whose last write failed. Each is left alone for a time of its own, whatever else changes.
    failing: BTreeMap<InstanceKey, Failing>,
}

/// An Instance that could not be written.
struct Failing {
    /// Names the cause and the remedy.
    error: String,
    /// Counts the writes in a row that have failed.
    failures: u32,
    /// Sets the next attempt.
    retry: Instant,
    /// Tells that the store takes no writes at all.
    is_unavailable: bool,
}

impl ReconcileTask {
    /// The task and what it publishes.
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
            joins: Repeats::default(),
            next_join: None,
            failing: BTreeMap::new(),
        };
        (task, seen)
    }

    /// Runs until `shutdown`. The batch that is being written is finished first.
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

    /// Returns the time of what is due and no event tells.
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
                let Meant { key, enters, .. } = Meant::of(change);
                if self.is_left_alone(&key, begun) {
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
            // Many Instances of one namespace delay none of another.
            let changes = in_turns(changes, |change| change.key().namespace);
            let (errors, whole) = self.apply(changes, &mut reservations.taken, shutdown).await;
            // What is left is planned anew: at the next turn, if devices are others now.
            read &= whole;
            // What is unavailable does not become available by asking again at once.
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
        // Not marked as seen: besides our own write it may have what another wrote since.
        let instances = Arc::clone(&self.instances.borrow());
        self.metrics.count_instances(&instances, &self.node);
        let interrupted = instances.interrupted.clone();
        problems.extend(interrupted.map(|error| Problem::InstancesNotWatched { error }));
        self.conclude(read && !self.is_barred(&instances), problems);
    }

    /// Tells of an Instance that failed before this turn and is not tried again in it.
    fn is_left_alone(&self, key: &InstanceKey, begun: Instant) -> bool {
        let failing = self.failing.get(key);
        failing.is_some_and(|failing| failing.retry > begun)
    }

    /// Leaves what has failed alone for a while. What fails together is tried again together.
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

    /// Tells that the Instances as a whole cannot be written: the store says so, or several fail and none of this node is as it should be. One
    /// that fails alone is shown, and keeps the agent from nothing.
    fn is_barred(&self, instances: &InstanceSet) -> bool {
        let is_well = |(key, instance): (&InstanceKey, &Arc<Instance>)| {
            !self.failing.contains_key(key) && instance.concerns(&self.node)
        };
        self.failing.values().any(|failing| failing.is_unavailable)
            || (self.failing.len() > 1 && !instances.instances.iter().any(is_well))
    }

    /// Makes the changes, a batch after the other; returns what failed, and whether all were made. They are not when devices are
    /// others meanwhile: then all is planned anew. Nor are they at `shutdown`.
    async fn apply(
        &mut self,
        changes: Vec<Change>,
        taken: &mut BTreeSet<InstanceKey>,
        shutdown: &CancellationToken,
    ) -> (Vec<Failed>, bool) {
        let mut errors = Vec::new();
        // An Instance that has failed before may hang, so it is in a batch without others. It has its turn however often devices change.
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

    /// Makes some changes; returns what failed. Names that another device has are added to `taken`.
    async fn apply_batch(
        &mut self,
        changes: Vec<Change>,
        taken: &mut BTreeSet<InstanceKey>,
    ) -> Vec<Failed> {
        let meant: Vec<Meant> = changes.iter().map(Meant::of).collect();
        let results = self.store.apply(changes).await;
        let (mut errors, mut left) = (Vec::new(), Vec::new());
        for (result, meant) in results.into_iter().zip(meant) {
            let label = result.as_ref().err().map_or("ok", StoreError::label);
            self.metrics.wrote(meant.kind, label);
            let error = match result {
                Ok(written) => {
                    self.failing.remove(&meant.key);
                    match meant.enters {
                        Some(true) => self.joins.wrote(meant.key, Instant::now()),
                        Some(false) => self.joins.forget(&meant.key),
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
                && let Some(device) = meant.local_device
                && !is_ours(&self.node, found, &device)
            {
                // Another device has the name; ours takes a longer one. What is ours, after an answer that was lost, is waited for.
                taken.insert(key.clone());
            }
            errors.push((meant.key, error));
        }
        if !left.is_empty() {
            self.remove(left).await;
        }
        errors
    }

    /// Removes Instances that this node was the last to leave: the others have left at the same moment. A node that has joined since then
    /// makes it fail, as it should.
    async fn remove(&mut self, left: Vec<Arc<Instance>>) {
        let delete = |instance: Arc<Instance>| Change::Delete {
            key: instance.key(),
            uid: instance.metadata.uid.clone(),
            resource_version: instance.metadata.resource_version.clone(),
        };
        for result in self
            .store
            .apply(left.into_iter().map(delete).collect())
            .await
        {
            let label = result.as_ref().err().map_or("ok", StoreError::label);
            self.metrics.wrote("delete", label);
        }
    }

    fn conclude(&mut self, done: bool, mut problems: Vec<Problem>) {
        let first = self.failing.values().next();
        problems.extend(first.map(|failing| Problem::InstancesNotWritten {
            error: failing.error.clone(),
            more: self.failing.len() - 1,
        }));
        self.report.send_if_modified(|held| {
            let new = ReconcileReport {
                done_once: held.done_once || done,
                problems,
            };
            let differs = *held != new;
            *held = new;
            differs
        });
    }
}

/// Cuts changes into batches.
fn batches(changes: Vec<Change>, most: usize) -> Peekable<impl Iterator<Item = Vec<Change>>> {
    let mut left = changes.into_iter();
    let batches = std::iter::from_fn(move || {
        let batch: Vec<Change> = left.by_ref().take(most.max(1)).collect();
        (!batch.is_empty()).then_some(batch)
    });
    batches.peekable()
}

/// A change that failed.
type Failed = (InstanceKey, StoreError);

/// What a change is, when it has been made.
struct Meant {
    kind: &'static str,
    key: InstanceKey,
    /// Whether it enters this node or takes it out.
    enters: Option<bool>,
    /// The local device that is created.
    local_device: Option<String>,
}

impl Meant {
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

/// Whether an Instance is of that local device of this node. Akri's agent wrote no id: the name says it.
fn is_ours(node: &str, found: &Instance, device: &str) -> bool {
    is_local_to(node, found) && found.device_id().is_none_or(|id| id == device)
}

#[cfg(test)]
mod tests;
