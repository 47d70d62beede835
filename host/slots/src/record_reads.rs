//! Schedules the slot task's reads of the kubelet's records and records their results.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::problem::Problem;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SlotTask;
use super::model::snapshot::Snapshot;
use super::records::Records;

/// Longest time that the first offer waits for the kubelet's records.
pub(super) const FIRST_READ: Duration = Duration::from_secs(10);
/// Delay between an event and the read that follows: the events of one pod come together.
pub(super) const SOON: Duration = Duration::from_millis(150);
/// First pause before unreadable records are read again; it doubles up to [`EVERY`]. A starting kubelet answers within moments, and nothing
/// is offered before.
const RETRY: Duration = Duration::from_millis(10);
/// Interval of reads while this node has slots: PodResources sends no events.
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// Interval of reads while the end of a pod with slots causes no event: the kubelet removes its folder up to two seconds later. For tickets also
/// while pods are uncertain.
pub(super) const SILENT: Duration = Duration::from_millis(600);

/// Schedule and results of the reads of the kubelet's records.
pub(super) struct RecordReads {
    pub records: Arc<dyn Records>,
    /// Changes when the records may have changed.
    pub changes: watch::Receiver<u64>,
    pub reading: JoinSet<Snapshot>,
    /// Time of the next read.
    pub next: Option<Instant>,
    /// Time until which nothing is offered while the holders of slots are unknown; `None` once they are known, or that time has passed.
    pub ready: Option<Instant>,
    /// Number of snapshots in a row without an answer of the kubelet.
    unanswered: u32,
    /// Problems of the last snapshot.
    pub problems: Vec<Problem>,
}

impl RecordReads {
    /// Creates a schedule whose first read is due at once.
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self {
            changes: records.changes(),
            records,
            reading: JoinSet::new(),
            next: Some(Instant::now()),
            ready: Some(Instant::now() + FIRST_READ),
            unanswered: 0,
            problems: Vec::new(),
        }
    }

    /// Returns true if a read is running or scheduled.
    pub fn is_active(&self) -> bool {
        self.next.is_some() || !self.reading.is_empty()
    }

    /// Schedules a read at `at` or earlier.
    pub fn schedule(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Records the problems of a snapshot, and the presence of an answer.
    fn take_in(&mut self, snapshot: &Snapshot) {
        for problem in &snapshot.problems {
            if !self.problems.contains(problem) {
                tracing::warn!(%problem, "cannot read all of the kubelet's records");
            }
        }
        self.problems.clone_from(&snapshot.problems);
        if snapshot.is_answer() {
            self.ready = None;
            self.unanswered = 0;
        } else {
            self.unanswered = self.unanswered.saturating_add(1);
        }
    }

    /// Returns the pause before the next read if no event comes. `has_slots` is true if this node has slots, which are released after
    /// `grace` if no pod is seen to have them.
    fn wait(&self, snapshot: &Snapshot, has_slots: bool, grace: Duration) -> Option<Duration> {
        if self.unanswered > 0 {
            Some(backoff::doubled(RETRY, self.unanswered, EVERY))
        } else if snapshot.is_silent && has_slots {
            Some(SILENT)
        } else if has_slots {
            Some(EVERY.min((grace / 4).max(SOON)))
        } else {
            (!snapshot.problems.is_empty()).then_some(EVERY)
        }
    }
}

impl SlotTask {
    /// Schedules a read after an event, unless it cannot matter.
    pub(super) fn schedule_read(&mut self, at: Instant) {
        if self.record_reads.ready.is_some()
            || !self.slot_table.by_device_id.is_empty()
            || self.record_reads.unanswered > 0
            || self.record_reads.records.kubelet_run() != self.slot_table.kubelet_run()
        {
            self.record_reads.schedule(at);
        }
    }

    /// Begins to read the records.
    pub(super) fn read(&mut self) {
        self.record_reads.next = None;
        // The end-to-end tests of Akri's agent search for these words.
        tracing::debug!("reclaiming unused slots - start");
        let states = self.slot_table.by_device_id.values();
        let uids = states.flat_map(|state| state.holder.uids()).collect();
        let open = self.slot_table.open(Instant::now());
        let records = Arc::clone(&self.record_reads.records);
        self.record_reads
            .reading
            .spawn(async move { records.read(uids, open).await });
    }

    /// Records a snapshot, and releases the slots that the snapshot shows to be free.
    pub(super) fn observe(&mut self, snapshot: &Snapshot) {
        let back = self.slot_table.observe(snapshot, self.config.grace);
        if let Some(due) = self.slot_table.due() {
            self.record_reads.schedule(due.max(Instant::now() + SOON));
        }
        self.slot_table
            .adopt(&self.node, &self.name_index, snapshot);
        self.release(back, None);
        self.is_due = true;
        self.store_kubelet();
        self.record_reads.take_in(snapshot);
        let has_slots = !self.slot_table.by_device_id.is_empty();
        if let Some(wait) = self
            .record_reads
            .wait(snapshot, has_slots, self.config.grace)
        {
            self.record_reads.schedule(Instant::now() + wait);
        }
    }
}
