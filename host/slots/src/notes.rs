//! Stores facts of the slot task for the next agent. Writes run beside the task, so that a disk that hangs does not delay offers.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::ports::{LedgerError, ResourceLedger};
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use leafhost_core::wait::SourceEnded;
use leafhost_kubelet::KubeletRun;
use tokio::task::{JoinError, JoinSet};
use tokio::time::Instant;

use super::SlotTask;

/// Delay before a failed write is tried again.
const AGAIN: Duration = Duration::from_secs(10);

/// Write that has ended.
pub(super) enum Note {
    /// Names that are offered.
    Names(BTreeSet<String>, Result<(), LedgerError>),
    /// Kubelet that has all slots in its records.
    Kubelet(KubeletRun, Result<(), LedgerError>),
}

/// Running writes, at most one of each kind.
pub(super) struct Notes {
    ledger: Arc<dyn ResourceLedger>,
    running: JoinSet<Note>,
    has_names: bool,
    has_kubelet: bool,
    /// Names that are offered and not stored yet: they are lost only over a restart.
    unwritten: BTreeSet<String>,
    /// Time of the next attempt after a failed write of names.
    pub retry: Option<Instant>,
    /// Problem of the last write of names.
    pub problem: Option<Problem>,
}

impl Notes {
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

    /// Returns the next write that ends.
    pub async fn next(&mut self) -> Option<Result<Note, JoinError>> {
        self.running.join_next().await
    }
}

impl SlotTask {
    /// Begins to store names, together with those that could not be stored before.
    pub(super) fn note_names(&mut self, names: BTreeSet<String>) {
        self.notes.unwritten.extend(names);
        let is_due = !self.notes.unwritten.is_empty() && self.notes.retry.is_none();
        if is_due && !std::mem::replace(&mut self.notes.has_names, true) {
            let ledger = Arc::clone(&self.notes.ledger);
            let names = self.notes.unwritten.clone();
            self.notes.running.spawn(async move {
                let written = ledger.add(names.clone()).await;
                Note::Names(names, written)
            });
        }
    }

    /// Begins to store which kubelet has all slots in its records, if it changed. Without it the next agent keeps slots that no pod is seen
    /// to have for the grace.
    pub(super) fn note_kubelet(&mut self) {
        if let Some(kubelet) = self.holds.news()
            && !std::mem::replace(&mut self.notes.has_kubelet, true)
        {
            let ledger = Arc::clone(&self.notes.ledger);
            self.notes.running.spawn(async move {
                let written = ledger.set_kubelet(kubelet.to_string()).await;
                Note::Kubelet(kubelet, written)
            });
        }
    }

    /// Takes in the result of a write.
    pub(super) fn noted(&mut self, note: Result<Note, JoinError>) -> Result<(), SourceEnded> {
        match note.map_err(|_| SourceEnded("what is written down of the kubelet"))? {
            Note::Names(names, written) => {
                self.notes.has_names = false;
                self.notes.problem = match written {
                    Ok(()) => {
                        self.notes.unwritten.retain(|name| !names.contains(name));
                        None
                    }
                    Err(error) => {
                        self.notes.retry = Some(Instant::now() + AGAIN);
                        let error = chain(&error);
                        Some(Problem::LedgerNotWritten { error })
                    }
                };
            }
            Note::Kubelet(kubelet, written) => {
                self.notes.has_kubelet = false;
                if written.is_ok() {
                    self.holds.trust(kubelet);
                }
            }
        }
        Ok(())
    }
}
