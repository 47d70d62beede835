//! The reconcile task: devices and Instances → plan → writes. All that is written of an Instance but its slots is written here.

use std::sync::Arc;

use leafhost_core::instance::HeldSlots;
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, StoreError};
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::backoff;
use crate::discovery::DeviceSnapshot;
use crate::metrics::Metrics;
use crate::plan::{Plan, Reservations, is_local_to, plan};
use crate::wait::{Ended, until};

/// After this many conflicts in a row the next attempt waits for the backoff.
const CONFLICTS: u32 = 3;

/// The most changes of one write. Between two writes the plan is made anew if devices have changed.
const BATCH: usize = 500;

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
    reservations: Reservations,
    failures: u32,
    retry: Option<Instant>,
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
            reservations: Reservations::default(),
            failures: 0,
            retry: None,
        };
        (task, seen)
    }

    /// Runs until `shutdown`. The batch that is being written is finished first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Ended> {
        self.devices.mark_changed();
        self.instances.mark_changed();
        loop {
            tokio::select! {
                biased;
                () = shutdown.cancelled() => return Ok(()),
                changed = self.devices.changed() => changed.map_err(|_| Ended("devices"))?,
                changed = self.instances.changed() => changed.map_err(|_| Ended("Instances"))?,
                () = until(self.retry) => {}
            }
            self.reconcile(&shutdown).await;
        }
    }

    async fn reconcile(&mut self, shutdown: &CancellationToken) {
        let mut errors = Vec::new();
        let mut read = false;
        let mut nameless = Vec::new();
        for _ in 0..CONFLICTS {
            let snapshot = Arc::clone(&self.devices.borrow_and_update());
            let instances = Arc::clone(&self.instances.borrow_and_update());
            read = snapshot.read && instances.complete;
            self.reservations.held = Arc::clone(&self.held.borrow());
            let Plan { changes, problems } =
                plan(&self.node, &snapshot, &instances, &self.reservations);
            nameless = problems;
            if changes.is_empty() {
                errors.clear();
                break;
            }
            let whole;
            (errors, whole) = self.apply(changes, shutdown).await;
            // What is left is planned anew: at the next turn, if devices are others now.
            read &= whole;
            // What is unavailable does not become available by asking again at once.
            if !errors
                .iter()
                .any(|error| matches!(error, StoreError::Conflict { .. }))
            {
                break;
            }
        }
        // Not marked as seen: besides our own write it may have what another wrote since.
        let instances = Arc::clone(&self.instances.borrow());
        self.metrics.count_instances(&instances, &self.node);
        self.conclude(read, &errors, nameless);
    }

    /// Makes the changes, a batch after the other; returns what failed, and whether all were made. They are not when devices are
    /// others meanwhile, whose changes may be more urgent, and at `shutdown`.
    async fn apply(
        &mut self,
        changes: Vec<Change>,
        shutdown: &CancellationToken,
    ) -> (Vec<StoreError>, bool) {
        let mut errors = Vec::new();
        let mut left = changes.into_iter();
        loop {
            let batch: Vec<Change> = left.by_ref().take(BATCH).collect();
            errors.extend(self.apply_batch(batch).await);
            if left.len() == 0 {
                return (errors, true);
            }
            if shutdown.is_cancelled() || self.devices.has_changed().unwrap_or(true) {
                return (errors, false);
            }
        }
    }

    /// Makes some changes; returns what failed.
    async fn apply_batch(&mut self, changes: Vec<Change>) -> Vec<StoreError> {
        let kinds: Vec<(&'static str, bool)> = changes
            .iter()
            .map(|change| match change {
                Change::Create(instance) => ("create", !instance.spec.shared),
                Change::Update { .. } => ("update", false),
                Change::Delete { .. } => ("delete", false),
            })
            .collect();
        let results = self.store.apply(changes).await;
        let mut errors = Vec::new();
        for (result, (kind, local_create)) in results.into_iter().zip(kinds) {
            let label = match &result {
                Ok(()) => "ok",
                Err(StoreError::Conflict { .. }) => "conflict",
                Err(StoreError::Unavailable { .. }) => "unavailable",
            };
            self.metrics.wrote(kind, label);
            let Err(error) = result else { continue };
            if let StoreError::Conflict { key, found } = &error
                && local_create
                && let Some(found) = found
                && !is_local_to(&self.node, found)
            {
                // Another node's device has the name; ours takes a longer one. What is ours, after an answer that was lost, is waited for.
                self.reservations.taken.insert(key.clone());
            }
            errors.push(error);
        }
        errors
    }

    fn conclude(&mut self, read: bool, errors: &[StoreError], mut problems: Vec<Problem>) {
        let unwritten = errors.first().map(|error| Problem::InstancesNotWritten {
            error: chain(error),
            more: errors.len() - 1,
        });
        if unwritten.is_some() {
            self.failures = self.failures.saturating_add(1);
            self.retry = Some(Instant::now() + backoff::wait(self.failures));
        } else {
            self.failures = 0;
            self.retry = None;
        }
        let done = read && unwritten.is_none();
        problems.extend(unwritten);
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

#[cfg(test)]
mod tests;
