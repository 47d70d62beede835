//! Writes down for the next agent what the slot task must not forget. It runs beside the task: a disk that hangs keeps nothing from being offered.

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

/// Delays the next attempt to write what could not be written.
const AGAIN: Duration = Duration::from_secs(10);

/// A write that has ended.
pub(super) enum Note {
    /// Of names that are offered.
    Names(BTreeSet<String>, Result<(), LedgerError>),
    /// Of the kubelet that has all slots in its records.
    Kubelet(KubeletRun, Result<(), LedgerError>),
}

/// The writes that run, of each kind one.
pub(super) struct Notes {
    ledger: Arc<dyn ResourceLedger>,
    running: JoinSet<Note>,
    has_names: bool,
    has_kubelet: bool,
    /// Names that are offered and not written down: they are only forgotten over a restart.
    unwritten: BTreeSet<String>,
    /// Sets the next attempt for names that could not be written down.
    pub retry: Option<Instant>,
    /// Names the cause why they could not.
    pub problem: Option<Problem>,
}

impl Notes {
    /// Returns those of a ledger, of which none runs.
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

    /// The next that ends.
    pub async fn next(&mut self) -> Option<Result<Note, JoinError>> {
        self.running.join_next().await
    }
}

impl SlotTask {
    /// Begins to write down names, those that could not be before among them.
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

    /// Begins to write down which kubelet has all slots in its records, if that is news. Where it cannot be written, the next agent holds what
    /// nobody is seen to have for the grace.
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

    /// Takes in what came of one.
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
