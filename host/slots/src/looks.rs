//! The slot task's looks at the kubelet's records: when it looks again, and what it has read.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::problem::Problem;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::SlotTask;
use super::model::snapshot::Snapshot;
use super::records::Records;

/// How long the first offer waits at most for the kubelet's records.
pub(super) const FIRST_LOOK: Duration = Duration::from_secs(10);
/// After an event the records are looked at a little later: the events of one pod come together.
pub(super) const SOON: Duration = Duration::from_millis(150);
/// The first pause before records that could not be read are read again; the pauses grow up to [`EVERY`]. A kubelet that starts
/// answers in a moment, and nothing is offered before.
const RETRY: Duration = Duration::from_millis(10);
/// How often the records are read while this node has slots: PodResources sends no events.
const EVERY: Duration = Duration::from_secs(10);
/// The same while a pod has slots whose end no event tells: the kubelet removes its folder up to two seconds later.
const SILENT: Duration = Duration::from_millis(600);

/// The looks at the records.
pub(super) struct Looks {
    pub records: Arc<dyn Records>,
    /// Tells that something may be news in them.
    pub changes: watch::Receiver<u64>,
    pub reading: JoinSet<Snapshot>,
    /// Sets the next look.
    pub next: Option<Instant>,
    /// Nothing is offered before it is known who holds what, or before this moment.
    pub ready: Option<Instant>,
    /// So many snapshots in a row told nothing.
    unanswered: u32,
    /// What could not be read.
    pub problems: Vec<Problem>,
    /// A kubelet runs without its socket.
    pub is_socket_missing: bool,
}

impl Looks {
    /// Looks at once.
    pub fn new(records: Arc<dyn Records>) -> Self {
        Self {
            changes: records.changes(),
            records,
            reading: JoinSet::new(),
            next: Some(Instant::now()),
            ready: Some(Instant::now() + FIRST_LOOK),
            unanswered: 0,
            problems: Vec::new(),
            is_socket_missing: false,
        }
    }

    /// Tells that a look is under way, or will be.
    pub fn is_looking(&self) -> bool {
        self.next.is_some() || !self.reading.is_empty()
    }

    /// Looks then at the latest.
    pub fn by(&mut self, at: Instant) {
        self.next = Some(self.next.map_or(at, |next| next.min(at)));
    }

    /// Takes in what a snapshot says of the records themselves.
    fn saw(&mut self, snapshot: &Snapshot) {
        for problem in &snapshot.problems {
            if !self.problems.contains(problem) {
                tracing::warn!(%problem, "cannot read all of the kubelet's records");
            }
        }
        self.problems.clone_from(&snapshot.problems);
        self.is_socket_missing = snapshot.is_socket_missing();
        if snapshot.is_answer() {
            self.ready = None;
            self.unanswered = 0;
        } else {
            self.unanswered = self.unanswered.saturating_add(1);
        }
    }

    /// Returns when to look again although nothing happens: this node `has_slots`, which come back after `grace` where nobody is seen to have
    /// them.
    fn wait(&self, snapshot: &Snapshot, has_slots: bool, grace: Duration) -> Option<Duration> {
        if self.unanswered > 0 {
            let doubled = 1_u32.checked_shl(self.unanswered - 1).unwrap_or(u32::MAX);
            Some(RETRY.saturating_mul(doubled).min(EVERY))
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
    /// Something happened: reads the records soon, if it can mean anything.
    pub(super) fn look_by(&mut self, at: Instant) {
        if self.looks.ready.is_some()
            || !self.holds.by_unit.is_empty()
            || self.looks.unanswered > 0
            || self.looks.records.kubelet_run() != self.holds.kubelet_run()
        {
            self.looks.by(at);
        }
    }

    /// Begins to read the records.
    pub(super) fn read(&mut self) {
        self.looks.next = None;
        // In the words of Akri's agent, for which its end-to-end tests look.
        tracing::debug!("reclaiming unused slots - start");
        let holds = self.holds.by_unit.values();
        let uids = holds.flat_map(|hold| hold.holder.uids()).collect();
        let open = self.holds.open(Instant::now());
        let records = Arc::clone(&self.looks.records);
        self.looks
            .reading
            .spawn(async move { records.read(uids, open).await });
    }

    /// Takes a snapshot in, and gives back what it frees.
    pub(super) fn see(&mut self, snapshot: &Snapshot) {
        let back = self.holds.see(snapshot, self.config.grace);
        if let Some(due) = self.holds.due() {
            self.looks.by(due.max(Instant::now() + SOON));
        }
        self.holds.adopt(&self.node, &self.owners, snapshot);
        self.release(back, Vec::new());
        self.is_due = true;
        self.note_kubelet();
        self.looks.saw(snapshot);
        let has_slots = !self.holds.by_unit.is_empty();
        if let Some(wait) = self.looks.wait(snapshot, has_slots, self.config.grace) {
            self.looks.by(Instant::now() + wait);
        }
    }
}
