//! Stores offered names and the trusted kubelet for the agent's next run. Writes run concurrently with the task, so that a disk that hangs
//! does not delay offers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::ports::ResourceLedger;
use leafhost_core::problem::Problem;
use leafhost_core::wait::SourceEnded;
use leafhost_kubelet::KubeletRun;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::SlotTask;

/// Delay before a failed write is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Write that has ended.
pub(super) enum LedgerWrite {
    /// Names that are offered.
    Names(BTreeSet<String>, Result<(), String>),
    /// Kubelet that has all slots in its records.
    Kubelet(KubeletRun, Result<(), String>),
}

/// Running writes, at most one of each kind.
pub(super) struct LedgerWrites {
    ledger: Arc<dyn ResourceLedger>,
    pub running: JoinSet<LedgerWrite>,
    has_names: bool,
    has_kubelet: bool,
    /// Offered names that are not stored yet; a restart would lose them.
    unwritten: BTreeSet<String>,
    /// Time of the next attempt after a failed write of names.
    pub retry: Option<Instant>,
    /// Problem of the last write of names.
    pub problem: Option<Problem>,
}

impl LedgerWrites {
    /// Returns an instance for `ledger` without running writes.
    pub fn new(ledger: Arc<dyn ResourceLedger>) -> Self {
        Self {
            ledger,
            running: JoinSet::new(),
            has_names: false,
            has_kubelet: false,
            unwritten: BTreeSet::new(),
            retry: None,
            problem: None,
        }
    }
}

impl SlotTask {
    /// Begins to store names, together with those that could not be stored before.
    pub(super) fn store_names(&mut self, names: BTreeSet<String>) {
        self.ledger_writes.unwritten.extend(names);
        let is_due = !self.ledger_writes.unwritten.is_empty() && self.ledger_writes.retry.is_none();
        if is_due && !std::mem::replace(&mut self.ledger_writes.has_names, true) {
            let ledger = Arc::clone(&self.ledger_writes.ledger);
            let names = self.ledger_writes.unwritten.clone();
            self.ledger_writes.running.spawn(async move {
                let written = ledger.add(names.clone()).await;
                LedgerWrite::Names(names, written)
            });
        }
    }

    /// Begins to store the kubelet whose records have all slots, if it changed. Otherwise, the agent's next run keeps slots without a known
    /// holder until the grace ends.
    pub(super) fn store_kubelet(&mut self) {
        // The slots of Instances that are not read yet may be unknown to this kubelet.
        if self.current.0.complete
            && let Some(kubelet) = self.slot_table.kubelet_to_trust()
            && !std::mem::replace(&mut self.ledger_writes.has_kubelet, true)
        {
            let ledger = Arc::clone(&self.ledger_writes.ledger);
            self.ledger_writes.running.spawn(async move {
                let written = ledger.set_kubelet(kubelet.to_string()).await;
                LedgerWrite::Kubelet(kubelet, written)
            });
        }
    }

    /// Records the result of a write.
    pub(super) fn ledger_written(
        &mut self,
        note: Result<LedgerWrite, JoinError>,
    ) -> Result<(), SourceEnded> {
        match note.map_err(|_| SourceEnded("writes of the kubelet's ledger"))? {
            LedgerWrite::Names(names, written) => {
                self.ledger_writes.has_names = false;
                self.ledger_writes.problem = match written {
                    Ok(()) => {
                        self.ledger_writes
                            .unwritten
                            .retain(|name| !names.contains(name));
                        None
                    }
                    Err(error) => {
                        self.ledger_writes.retry = Some(Instant::now() + AGAIN);
                        Some(Problem::LedgerNotWritten { error })
                    }
                };
            }
            LedgerWrite::Kubelet(kubelet, written) => {
                self.ledger_writes.has_kubelet = false;
                if written.is_ok() {
                    self.slot_table.trust(kubelet);
                }
            }
        }
        Ok(())
    }
}
