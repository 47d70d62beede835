//! The slot task: which slots this node has, what the kubelet is offered, and who gets what. It is the only one that claims
//! and releases on this node, one decision after the other.
//!
//! A claim is written before the kubelet is answered, as a compare-and-swap: whoever loses a race is told so, and every list
//! shows the true state at once. A slot comes back as [`holds`] says.

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

/// How slots are offered and come back.
#[derive(Debug, Clone, Copy)]
pub struct SlotConfig {
    /// How long a slot stays claimed that no pod was seen to have.
    pub grace: Duration,
    /// Resources of single Instances at one time.
    pub instance_resources: usize,
}

/// What the task works on.
pub struct SlotPorts {
    /// Where slots are claimed.
    pub store: Arc<dyn InstanceStore>,
    /// The names that were ever offered.
    pub ledger: Arc<dyn ResourceLedger>,
    /// The devices as they are seen.
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    /// What is held goes here.
    pub held: watch::Sender<Arc<HeldSlots>>,
}

/// The task.
pub struct SlotTask {
    node: Arc<str>,
    config: SlotConfig,
    store: Arc<dyn InstanceStore>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    requests: mpsc::Receiver<Request>,
    metrics: Arc<Metrics>,
    clock: Clock,
    /// What was last taken over.
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
    /// Tells that something has changed that decides which slots are given back, claimed for pods that have them, or given to requests that wait.
    is_due: bool,
}

impl SlotTask {
    /// The task and what it publishes.
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

    /// Runs until `shutdown`. A write that has begun is finished first.
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
                    // The answer's own task would wait on this thread until the lists are computed.
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
                    // A node that came later has no pod with a slot of an Instance that was made before.
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

    /// Takes over what the store and the devices say now.
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
            // A claim of this node that somebody else wrote, while it had none.
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
