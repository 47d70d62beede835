//! The slot task: decides which slots this node has, what the kubelet is offered, and which allocation gets which slot. No other task
//! claims or releases slots on this node, and it makes one decision at a time.
//!
//! A claim is written as a compare-and-swap before the kubelet is answered: a node that loses a race gets an error, and every list shows
//! the true state at once. [`model::holds`] says when a slot is released.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::clock::Clock;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::HeldSlots;
use leafhost_core::ports::{InstanceSet, InstanceStore, ResourceLedger};
use leafhost_core::wait::{SourceEnded, until};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod adopt;
mod allocate;
pub mod holders;
mod looks;
mod metrics;
pub mod model;
mod node_count;
mod notes;
mod pending;
mod publish;
mod questions;
pub mod queue;
pub mod records;
mod refusals;
mod release;
pub mod report;
mod submounts;
pub mod tickets;
mod unwritable;
mod writes;

pub use metrics::Metrics;
pub use queue::{AllocateQueue, SlotHandle};

use adopt::Adoptions;
use looks::Looks;
use looks::{FIRST_LOOK, SOON};
use model::claim::Turns;
use model::holds::Holds;
use model::newcomers::Newcomers;
use model::view::Owners;
use node_count::NodeCount;
use notes::Notes;
use pending::Pending;
use publish::Shown;
use questions::Questions;
use queue::{QUEUE, Request};
use records::Records;
use report::SlotReport;
use unwritable::Unwritable;
use writes::Writes;

/// Limits of offers and releases.
#[derive(Debug, Clone, Copy)]
pub struct SlotConfig {
    /// Time after which a claimed slot is released if no pod was seen to have it.
    pub grace: Duration,
    /// Upper bound of resources of single Instances at one time.
    pub instance_resources: usize,
}

/// Ports of the slot task.
pub struct SlotPorts {
    /// Store of Instances, in which slots are claimed.
    pub store: Arc<dyn InstanceStore>,
    /// Ledger of all resource names that were ever offered.
    pub ledger: Arc<dyn ResourceLedger>,
    /// Devices as discovery sees them.
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    /// Receives the slots that containers have.
    pub held: watch::Sender<Arc<HeldSlots>>,
}

/// Task that owns the slots of this node.
pub struct SlotTask {
    node: Arc<str>,
    config: SlotConfig,
    store: Arc<dyn InstanceStore>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    requests: mpsc::Receiver<Request>,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// Instances and devices that were last taken over.
    met: (Arc<InstanceSet>, Arc<DeviceSnapshot>),
    owners: Owners,
    holds: Holds,
    newcomers: Newcomers,
    nodes: NodeCount,
    turns: Turns,
    looks: Looks,
    writes: Writes,
    questions: Questions,
    notes: Notes,
    pending: Pending,
    adoptions: Adoptions,
    unwritable: Unwritable,
    shown: Shown,
    /// True if slots may have to be released, claimed for pods that have them, or given to waiting requests.
    is_due: bool,
}

impl SlotTask {
    /// Creates the task; returns it with the receiver of its reports.
    pub fn new(
        queue: AllocateQueue,
        config: SlotConfig,
        ports: SlotPorts,
        records: Arc<dyn Records>,
        metrics: Arc<Metrics>,
    ) -> (Self, watch::Receiver<Arc<SlotReport>>) {
        let seen = queue.report.subscribe();
        let task = Self {
            node: queue.handle.node,
            config,
            instances: ports.store.instances(),
            holds: Holds::new(ports.ledger.kubelet().and_then(|text| text.parse().ok())),
            store: ports.store,
            devices: ports.devices,
            requests: queue.requests,
            metrics,
            clock: Clock::new(jiff::Timestamp::now()),
            met: (Arc::default(), Arc::default()),
            owners: Owners::default(),
            newcomers: Newcomers::default(),
            nodes: NodeCount::default(),
            turns: Turns::new(),
            looks: Looks::new(records),
            writes: Writes::default(),
            questions: Questions::default(),
            pending: Pending::default(),
            adoptions: Adoptions::default(),
            unwritable: Unwritable::default(),
            shown: Shown::new(queue.offers, ports.held, queue.report, ports.ledger.names()),
            notes: Notes::new(ports.ledger),
            is_due: true,
        };
        (task, seen)
    }

    /// Runs until `shutdown`. Writes that have begun are finished first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        self.refresh();
        loop {
            let (again, patience) = (self.notes.retry, self.pending.until());
            tokio::select! {
                () = shutdown.cancelled() => return self.finish().await,
                changed = self.instances.changed() => changed.map_err(|_| SourceEnded("Instances"))?,
                changed = self.devices.changed() => changed.map_err(|_| SourceEnded("devices"))?,
                Some(first) = self.requests.recv() => {
                    let mut waiting = vec![first];
                    while waiting.len() < QUEUE
                        && let Ok(next) = self.requests.try_recv()
                    {
                        waiting.push(next);
                    }
                    self.allocate(waiting).await;
                    // The task that answers the kubelet would otherwise wait on this thread until the lists are computed.
                    tokio::task::yield_now().await;
                }
                Some(done) = self.writes.next() => {
                    self.written(done).await?;
                    tokio::task::yield_now().await;
                }
                Some(answer) = self.questions.next() => {
                    self.answered(answer).await?;
                    tokio::task::yield_now().await;
                }
                Some(note) = self.notes.next() => self.noted(note)?,
                Some(snapshot) = self.looks.reading.join_next() => {
                    if let Ok(snapshot) = snapshot {
                        self.see(&snapshot);
                    } else {
                        tracing::error!("reading the kubelet's records panicked; this is a bug");
                        self.looks.by(Instant::now() + FIRST_LOOK);
                    }
                }
                changed = self.looks.changes.changed() => {
                    changed.map_err(|_| SourceEnded("the kubelet's folder"))?;
                    self.look_by(Instant::now() + SOON);
                }
                () = until(self.looks.next), if self.looks.reading.is_empty() => self.read(),
                () = until(self.looks.ready) => self.looks.ready = None,
                () = until(self.unwritable.next()) => self.try_to_write(),
                () = until(again) => self.notes.retry = None,
                () = until(self.shown.refusals.next()) => {}
                Some(is_alone) = self.nodes.next() => {
                    // A node that joins later has no pod with a slot of an Instance created before.
                    self.is_due |= is_alone && self.newcomers.end();
                }
                () = until(self.newcomers.next()) => self.is_due |= self.newcomers.expire(Instant::now()),
                () = until(patience) => self.is_due = true,
            }
            self.refresh();
            if std::mem::take(&mut self.is_due) {
                self.take_back_void();
                self.adopt();
                self.decide_patient().await;
            }
            self.publish();
        }
    }

    /// Takes over the current Instances and devices.
    fn refresh(&mut self) {
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let devices = Arc::clone(&self.devices.borrow_and_update());
        let (old_instances, old_devices) = &self.met;
        let same = Arc::ptr_eq(old_instances, &instances);
        let same_owners = Arc::ptr_eq(old_devices, &devices)
            && (same || model::view::is_alike(&self.node, old_instances, &instances));
        if !same_owners {
            self.owners = Owners::new(&self.node, &devices, &instances);
            let known = &devices.configurations;
            self.turns.retain(|key, _| known.contains_key(key));
        }
        if !same {
            self.holds.update(&self.node, &self.owners, &instances);
            if self.store.has_other_nodes() {
                self.newcomers
                    .update(&instances, Instant::now(), self.clock.now());
                if !self.newcomers.uids().is_empty() {
                    self.nodes.count(&self.store);
                }
            }
            // Another writer has added a claim of this node while it had none.
            if !self.looks.is_looking() && !self.holds.by_unit.is_empty() {
                self.looks.by(Instant::now() + SOON);
            }
        }
        self.is_due |= !(same && same_owners);
        self.met = (instances, devices);
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
