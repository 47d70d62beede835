//! Reserves the names of Configurations for their namespaces, and frees names that are no longer used.
//!
//! ```text
//!  Configurations ─┐
//!                  ├─► plan ─► reserve, note, free
//!  reservations ───┘     ▲
//!                        └ backoff: what could not be written
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::backoff;
use leafhost_core::cluster::Cluster;
use leafhost_core::resource_names::{NameSet, NameStore};
use leafhost_core::status_store::{ConfigurationStates, StatusStore, WriteError};
use leafhost_core::timeouts::BACKOFF_FIRST;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::error::Error;
use crate::metrics::{Metrics, Write};
use crate::pass_schedule::Earliest;

mod name_index;
mod plan;

pub use name_index::NameIndex;
use plan::{Change, Plan, plan};

/// Delay between a change and the pass that handles it; many changes come together.
const SOON: Duration = Duration::from_millis(100);
/// Time within which a write is expected to be seen.
const SEEN: Duration = Duration::from_secs(10);

/// Reserves and frees names while this controller leads; returns only if a source ends.
pub async fn run(
    cluster: &dyn Cluster,
    statuses: &dyn StatusStore,
    store: &dyn NameStore,
    grace: Duration,
    metrics: &Metrics,
) -> Result<(), Error> {
    let mut task = NameReserver {
        store,
        metrics,
        grace,
        leads: cluster.leads(),
        configurations: statuses.configurations(),
        names: store.names(),
        attempts: BTreeMap::new(),
        rests: Instant::now(),
    };
    let mut next = Some(Instant::now());
    let mut logged = None;
    loop {
        let problem = task.names.borrow().problem.clone();
        if logged != problem {
            if let Some(problem) = &problem {
                tracing::warn!("ResourceNames {problem}");
            }
            logged = problem;
        }
        let at = next.map(|next| next.max(task.rests));
        tokio::select! {
            changed = task.leads.changed() => changed.map_err(|_| Error("the lease"))?,
            changed = task.configurations.changed() => changed.map_err(|_| Error("Configurations"))?,
            changed = task.names.changed() => changed.map_err(|_| Error("ResourceNames"))?,
            () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {
                next = task.pass().await;
                continue;
            }
        }
        let soon = Instant::now() + SOON;
        next = Some(next.map_or(soon, |next| next.min(soon)));
    }
}

struct NameReserver<'a> {
    store: &'a dyn NameStore,
    metrics: &'a Metrics,
    grace: Duration,
    leads: watch::Receiver<bool>,
    configurations: watch::Receiver<Arc<ConfigurationStates>>,
    names: watch::Receiver<Arc<NameSet>>,
    /// Last writes by name.
    attempts: BTreeMap<String, Attempt>,
    /// Earliest time of the next write.
    rests: Instant,
}

/// Last write of a name.
#[derive(Debug)]
struct Attempt {
    change: Change,
    /// Number of failures in a row.
    failures: u32,
    again: Instant,
}

impl NameReserver<'_> {
    /// Writes the planned changes. Returns the time of the next pass if nothing changes.
    async fn pass(&mut self) -> Option<Instant> {
        let states = Arc::clone(&self.configurations.borrow_and_update());
        let set = Arc::clone(&self.names.borrow_and_update());
        if !*self.leads.borrow_and_update() || !states.complete || !set.is_read {
            return None;
        }
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Plan { mut changes, next } = plan(&states, &set, self.grace, clock);
        // Changes that failed before come last, so that they delay no others.
        changes.sort_by_key(|change| self.attempts.get(change.name()).map(|one| one.failures));
        let planned: BTreeMap<&str, &Change> = changes
            .iter()
            .map(|change| (change.name(), change))
            .collect();
        self.attempts
            .retain(|name, attempt| planned.get(name.as_str()) == Some(&&attempt.change));
        let mut earliest = Earliest::default();
        if let Some(next) = next {
            let wait = Duration::try_from(next.duration_since(clock));
            earliest.by(now + wait.unwrap_or_default().max(SOON));
        }
        for change in &changes {
            let before = self.attempts.get(change.name());
            if let Some(before) = before.filter(|before| before.again > Instant::now()) {
                earliest.by(before.again);
                continue;
            }
            let soon = Instant::now() + SOON;
            if self.leads.has_changed().unwrap_or(true) {
                return Some(soon);
            }
            // A user may just have applied the Configuration again.
            let is_free = matches!(change, Change::Free { .. });
            if is_free && self.configurations.has_changed().unwrap_or(true) {
                earliest.by(soon);
                continue;
            }
            let failures = before.map_or(0, |before| before.failures);
            let written = self.write(change, &set).await;
            let is_away = matches!(written, Err(WriteError::NoAnswer { .. }));
            let (failures, wait) = match &written {
                Ok(()) | Err(WriteError::Outdated) => (0, SEEN),
                Err(_) => {
                    let failures = failures.saturating_add(1);
                    (failures, backoff::without_jitter(failures))
                }
            };
            self.note(change, failures, &written);
            let again = Instant::now() + wait;
            earliest.by(again);
            let attempt = Attempt {
                change: change.clone(),
                failures,
                again,
            };
            self.attempts.insert(change.name().to_owned(), attempt);
            if is_away {
                // The next pass continues with the other changes.
                self.rests = Instant::now() + BACKOFF_FIRST;
                return Some(self.rests);
            }
        }
        earliest.0
    }

    async fn write(&self, change: &Change, set: &NameSet) -> Result<(), WriteError> {
        let seen = |name: &str| set.records.get(name).ok_or(WriteError::Outdated);
        match change {
            Change::Reserve { name, namespace } => self.store.reserve(name, namespace).await,
            Change::Note { name, is_used } => {
                let now = (!is_used).then(Timestamp::now);
                self.store.note_unused(name, seen(name)?, now).await
            }
            Change::Free { name } => self.store.free(name, seen(name)?).await,
        }
    }

    fn note(&self, change: &Change, failures: u32, written: &Result<(), WriteError>) {
        let name = change.name();
        match (change, written) {
            (_, Err(WriteError::Outdated)) => {}
            (_, Err(error)) => {
                self.metrics.failed(Write::Name);
                if failures.is_power_of_two() {
                    tracing::warn!(name, %error, "cannot write a ResourceName");
                }
            }
            (Change::Reserve { namespace, .. }, Ok(())) => {
                tracing::info!(name, namespace, "reserved the name of a resource");
            }
            (Change::Free { .. }, Ok(())) => {
                tracing::info!(
                    name,
                    "freed the name of a resource that nobody uses any more"
                );
            }
            (Change::Note { is_used, .. }, Ok(())) => {
                tracing::info!(
                    name,
                    is_used,
                    "noted whether the name of a resource is used"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests;
