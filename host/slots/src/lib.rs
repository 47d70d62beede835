//! The slot task: decides which slots this node has, what the kubelet is offered, and which allocation gets which slot. No other task
//! claims or releases slots on this node, and it makes one decision at a time.
//!
//! A claim is written as a compare-and-swap before the kubelet is answered: a node that loses a race gets an error, and every list shows
//! the true state at once. [`model::slot_table`] says when a slot is released.

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
mod holder_queries;
pub mod holders;
mod ledger_writes;
mod metrics;
pub mod model;
mod node_count;
mod publish;
pub mod queue;
mod record_reads;
pub mod records;
mod refusals;
mod release;
pub mod report;
mod submounts;
pub mod tickets;
mod unwritable;
mod writes;

pub use metrics::Metrics;
pub use queue::{AllocateQueue, SlotHandle, TicketQueue};

use adopt::Adoptions;
use holder_queries::HolderQueries;
use ledger_writes::LedgerWrites;
use model::claim::RoundRobin;
use model::context::SlotContext;
use model::name_index::NameIndex;
use model::offers::OfferBuilder;
use model::slot_table::SlotTable;
use model::warmup::Warmup;
use node_count::NodeCount;
use publish::Published;
use queue::{Pending, Request};
use record_reads::RecordReads;
use record_reads::{FIRST_READ, SOON};
use records::Records;
use refusals::Refusals;
use report::SlotReport;
use unwritable::Unwritable;
use writes::Writes;

/// Limits of offers and releases.
#[derive(Debug, Clone, Copy)]
pub struct SlotConfig {
    /// Time after which a claimed slot is released if no pod was seen to have the slot.
    pub grace: Duration,
    /// Maximum number of resources of Instances at the same time.
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
    /// Instances and devices at the last `refresh`.
    current: (Arc<InstanceSet>, Arc<DeviceSnapshot>),
    name_index: NameIndex,
    slot_table: SlotTable,
    warmup: Warmup,
    nodes: NodeCount,
    round_robin: RoundRobin,
    record_reads: RecordReads,
    writes: Writes,
    holder_queries: HolderQueries,
    ledger_writes: LedgerWrites,
    pending: Pending,
    adoptions: Adoptions,
    unwritable: Unwritable,
    published: Published,
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
            slot_table: SlotTable::new(
                ports.ledger.kubelet().and_then(|text| text.parse().ok()),
                ports.ledger.has_rebooted(),
            ),
            store: ports.store,
            devices: ports.devices,
            requests: queue.requests,
            metrics,
            clock: Clock::new(jiff::Timestamp::now()),
            current: (Arc::default(), Arc::default()),
            name_index: NameIndex::default(),
            warmup: Warmup::default(),
            nodes: NodeCount::default(),
            round_robin: RoundRobin::new(),
            record_reads: RecordReads::new(records),
            writes: Writes::default(),
            holder_queries: HolderQueries::default(),
            pending: Pending::default(),
            adoptions: Adoptions::default(),
            unwritable: Unwritable::default(),
            published: Published {
                offers: queue.offers,
                held: ports.held,
                report: queue.report,
                offer_builder: OfferBuilder::default(),
                known: ports.ledger.names(),
                refusals: Refusals::default(),
            },
            ledger_writes: LedgerWrites::new(ports.ledger),
            is_due: true,
        };
        (task, seen)
    }

    /// Runs until `shutdown`. Writes that have begun are finished first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        self.refresh();
        loop {
            let (again, time_limit) = (self.ledger_writes.retry, self.pending.until());
            tokio::select! {
                () = shutdown.cancelled() => return self.finish().await,
                changed = self.instances.changed() => changed.map_err(|_| SourceEnded("Instances"))?,
                changed = self.devices.changed() => changed.map_err(|_| SourceEnded("devices"))?,
                Some(request) = self.requests.recv() => {
                    self.allocate(request).await;
                    // The task that answers the kubelet would otherwise wait on this thread until the lists are computed.
                    tokio::task::yield_now().await;
                }
                Some(done) = self.writes.running.join_next() => {
                    self.written(done).await?;
                    tokio::task::yield_now().await;
                }
                Some(answer) = self.holder_queries.next() => {
                    self.answered(answer).await?;
                    tokio::task::yield_now().await;
                }
                Some(note) = self.ledger_writes.running.join_next() => self.ledger_written(note)?,
                Some(snapshot) = self.record_reads.reading.join_next() => {
                    if let Ok(snapshot) = snapshot {
                        self.observe(&snapshot);
                    } else {
                        tracing::error!("reading the kubelet's records panicked; this is a bug");
                        self.record_reads.schedule(Instant::now() + FIRST_READ);
                    }
                }
                changed = self.record_reads.changes.changed() => {
                    changed.map_err(|_| SourceEnded("the kubelet's folder"))?;
                    self.schedule_read(Instant::now() + SOON);
                }
                () = until(self.record_reads.next), if self.record_reads.reading.is_empty() => self.read(),
                () = until(self.record_reads.ready) => self.record_reads.ready = None,
                () = until(self.unwritable.next()) => self.try_to_write(),
                () = until(again) => self.ledger_writes.retry = None,
                () = until(self.published.refusals.next()) => {}
                Some(is_alone) = self.nodes.next() => {
                    // A node that joins later has no pod with a slot of an Instance created before.
                    self.is_due |= is_alone && self.warmup.end();
                }
                () = until(self.warmup.next()) => self.is_due |= self.warmup.expire(Instant::now()),
                () = until(time_limit) => self.is_due = true,
            }
            self.refresh();
            if std::mem::take(&mut self.is_due) {
                self.release_refused_claims();
                self.adopt();
                let waiting = std::mem::take(&mut self.pending.waiting);
                self.retry(waiting).await;
            }
            self.publish();
        }
    }

    /// Returns the state from which the task decides about slots, as last recorded.
    fn context(&self) -> SlotContext<'_> {
        let (instances, devices) = &self.current;
        SlotContext {
            node: &self.node,
            devices,
            instances,
            name_index: &self.name_index,
            slot_table: &self.slot_table,
            new: self.warmup.waiting(),
            barred: self.unwritable.barred(),
            kubelet: self.record_reads.records.kubelet_run(),
        }
    }

    /// Updates the state of the task from the current Instances and devices.
    fn refresh(&mut self) {
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let devices = Arc::clone(&self.devices.borrow_and_update());
        let (old_instances, old_devices) = &self.current;
        let same = Arc::ptr_eq(old_instances, &instances);
        let same_name_index = Arc::ptr_eq(old_devices, &devices)
            && (same || model::name_index::has_same_names(&self.node, old_instances, &instances));
        if !same_name_index {
            self.name_index = NameIndex::new(&self.node, &devices, &instances);
            let known = &devices.configurations;
            self.round_robin.retain(|key, _| known.contains_key(key));
        }
        if !same {
            self.slot_table
                .update(&self.node, &self.name_index, &instances);
            if self.store.has_other_nodes() {
                self.warmup
                    .update(&instances, Instant::now(), self.clock.now());
                if !self.warmup.waiting().is_empty() {
                    self.nodes.count(&self.store);
                }
            }
            // Another writer has added a claim of this node while this node had no slots.
            if !self.record_reads.is_active() && !self.slot_table.by_device_id.is_empty() {
                self.record_reads.schedule(Instant::now() + SOON);
            }
        }
        self.is_due |= !(same && same_name_index);
        self.current = (instances, devices);
    }
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod tests;
