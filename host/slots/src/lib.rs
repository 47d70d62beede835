//! The slot task: which slots this node has, what the kubelet is offered, and who gets what. It is the only one that claims
//! and releases on this node, one decision after the other.
//!
//! A claim is written before the kubelet is answered, as a compare-and-swap: whoever loses a race is told so, and every list
//! shows the true state at once. A slot comes back as [`holds`] says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::clock::Clock;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::HeldSlots;
use leafhost_core::ports::{InstanceSet, InstanceStore, ResourceLedger};
use leafhost_core::problem::Problem;
use leafhost_core::repeats::Repeats;
use leafhost_core::wait::{SourceEnded, until};
use leafhost_kubelet::Offers;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod allocate;
pub mod holders;
mod metrics;
pub mod model;
mod notes;
mod publish;
mod questions;
pub mod queue;
pub mod records;
mod refusals;
mod release;
pub mod report;
mod submounts;
mod unwritable;
mod writes;

pub use metrics::Metrics;
pub use queue::{AllocateQueue, SlotHandle};

use model::claim::Turns;
use model::hold::Place;
use model::holds::Holds;
use model::newcomers::Newcomers;
use model::offers::Offerer;
use model::snapshot::Snapshot;
use model::view::Owners;
use notes::Notes;
use questions::Questions;
use queue::{QUEUE, Request};
use records::Records;
use refusals::Refusals;
use release::SOON;
use report::SlotReport;
use unwritable::Unwritable;
use writes::Writes;

/// How long the first offer waits at most for the kubelet's records.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// Bounds how often the nodes are counted.
const COUNTED: Duration = Duration::from_secs(1);

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
    ledger: Arc<dyn ResourceLedger>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    records: Arc<dyn Records>,
    changes: watch::Receiver<u64>,
    requests: mpsc::Receiver<Request>,
    offers: watch::Sender<Arc<Offers>>,
    held: watch::Sender<Arc<HeldSlots>>,
    report: watch::Sender<Arc<SlotReport>>,
    metrics: Arc<Metrics>,
    /// What was last taken over.
    met: (Arc<InstanceSet>, Arc<DeviceSnapshot>),
    owners: Owners,
    holds: Holds,
    newcomers: Newcomers,
    /// Counts the nodes of the cluster.
    counting: JoinSet<Option<usize>>,
    /// Remembers when they were counted last.
    counted: Option<Instant>,
    turns: Turns,
    offerer: Offerer,
    known: BTreeSet<String>,
    reading: JoinSet<Snapshot>,
    next_read: Option<Instant>,
    /// Nothing is offered before it is known who holds what, or before this moment.
    ready: Option<Instant>,
    writes: Writes,
    questions: Questions,
    notes: Notes,
    /// Allocations of units of which something is being written or asked.
    waiting: Vec<Request>,
    /// Allocations through a Configuration for which no slot is free at the moment.
    patient: Vec<Request>,
    /// Tells that something has changed that decides which slots are given back, claimed for pods that have them, or given to requests that wait.
    is_due: bool,
    /// Claims whose allocation was answered with an error, until when: nobody can have them.
    void: BTreeMap<Place, Instant>,
    /// So many snapshots in a row told nothing.
    unanswered: u32,
    /// Slots that the kubelet has and another node claims.
    problems: BTreeSet<Problem>,
    /// The slots that were claimed because the kubelet has them.
    adopted: Repeats<Place>,
    /// Why such a slot could not be claimed.
    adopt_problem: Option<Problem>,
    record_problems: Vec<Problem>,
    /// A kubelet runs without its socket.
    socket_missing: bool,
    /// The Instances of which no slot can be claimed.
    unwritable: Unwritable,
    refusals: Refusals,
    clock: Clock,
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
            known: ports.ledger.names(),
            holds: Holds::new(ports.ledger.kubelet().and_then(|text| text.parse().ok())),
            store: ports.store,
            ledger: ports.ledger,
            devices: ports.devices,
            changes: records.changes(),
            records,
            requests: queue.requests,
            offers: queue.offers,
            held: ports.held,
            report: queue.report,
            metrics,
            met: (Arc::default(), Arc::default()),
            owners: Owners::default(),
            newcomers: Newcomers::default(),
            counting: JoinSet::new(),
            counted: None,
            turns: Turns::new(),
            offerer: Offerer::default(),
            reading: JoinSet::new(),
            next_read: Some(Instant::now()),
            ready: Some(Instant::now() + FIRST_LOOK),
            writes: Writes::default(),
            questions: Questions::default(),
            notes: Notes::default(),
            waiting: Vec::new(),
            patient: Vec::new(),
            is_due: true,
            void: BTreeMap::new(),
            unanswered: 0,
            problems: BTreeSet::new(),
            adopted: Repeats::default(),
            adopt_problem: None,
            record_problems: Vec::new(),
            socket_missing: false,
            unwritable: Unwritable::default(),
            refusals: Refusals::default(),
            clock: Clock::new(jiff::Timestamp::now()),
        };
        (task, seen)
    }

    /// Runs until `shutdown`. A write that has begun is finished first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        self.refresh();
        loop {
            let (again, patience) = (self.notes.retry, self.patience());
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
                Some(snapshot) = self.reading.join_next() => {
                    if let Ok(snapshot) = snapshot {
                        self.see(&snapshot);
                    } else {
                        tracing::error!("reading the kubelet's records panicked; this is a bug");
                        self.look_at(Instant::now() + FIRST_LOOK);
                    }
                }
                changed = self.changes.changed() => {
                    changed.map_err(|_| SourceEnded("the kubelet's folder"))?;
                    self.look_by(Instant::now() + SOON);
                }
                () = until(self.next_read), if self.reading.is_empty() => self.read(),
                () = until(self.ready) => self.ready = None,
                () = until(self.unwritable.next()) => self.try_to_write(),
                () = until(again) => self.notes.retry = None,
                () = until(self.refusals.next()) => {}
                Some(count) = self.counting.join_next() => {
                    // A node that came later has no pod with a slot of an Instance that was made before.
                    self.is_due |= count.ok().flatten() == Some(1) && self.newcomers.end();
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
                self.count_nodes();
            }
            // A claim of this node that somebody else wrote, while it had none.
            let is_looking = self.next_read.is_some() || !self.reading.is_empty();
            if !is_looking && !self.holds.by_unit.is_empty() {
                self.look_at(Instant::now() + SOON);
            }
        }
        self.is_due |= !(same && same_owners);
        self.met = (instances, devices);
    }

    /// Asks how many nodes there are, while an Instance waits for the others.
    fn count_nodes(&mut self) {
        let is_new = self.counted.is_some_and(|at| at.elapsed() < COUNTED);
        if !is_new && self.counting.is_empty() && !self.newcomers.uids().is_empty() {
            self.counted = Some(Instant::now());
            let store = Arc::clone(&self.store);
            self.counting
                .spawn(async move { store.count_nodes().await });
        }
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
