//! Learns what cannot be written: single Instances, each for itself, or none at all. Pure; time is an argument.
//!
//! An Instance whose write is denied, or of which no answer tells whether it was written, is barred alone. All are only when the store says
//! that it takes no writes, or when another Instance fails before anything was written again.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::{Change, InstanceSet, StoreError, Written};
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use tokio::time::Instant;

/// The longest time between two attempts while nothing can be written.
const LONGEST: Duration = Duration::from_secs(10);
/// The longest time between two attempts while one Instance cannot be written.
const LONGEST_ALONE: Duration = Duration::from_mins(1);
/// The least time after an attempt that told nothing.
const SOON: Duration = Duration::from_secs(1);

/// Remembers what cannot be written.
#[derive(Debug, Default)]
pub struct Unwritable {
    /// The Instances that failed. One whose attempt has succeeded keeps the number of its failures until something is written of it.
    instances: BTreeMap<InstanceKey, Failing>,
    /// Those of them of which nothing is given.
    barred: BTreeSet<InstanceKey>,
    /// Those that began to fail since something was written.
    fresh: BTreeSet<InstanceKey>,
    /// The Instance that told that none can be written.
    store: Option<(InstanceKey, Failing)>,
}

#[derive(Debug)]
struct Failing {
    /// Names the cause and the remedy.
    problem: String,
    /// Counts the writes in a row that have failed.
    failures: u32,
    /// Sets the next attempt.
    next: Instant,
}

/// Tells what a write has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum News {
    /// Nothing.
    None,
    /// Something can no longer be written.
    Worse,
    /// Something can be written again.
    Better,
}

impl Unwritable {
    /// The Instances of which nothing is given.
    pub fn barred(&self) -> &BTreeSet<InstanceKey> {
        &self.barred
    }

    /// Tells that no Instance can be written.
    pub fn is_all(&self) -> bool {
        self.store.is_some()
    }

    /// Tells that this Instance cannot be written.
    pub fn has(&self, key: &InstanceKey) -> bool {
        self.is_all() || self.barred.contains(key)
    }

    /// Returns the time of the next attempt.
    pub fn next(&self) -> Option<Instant> {
        match &self.store {
            Some((_, store)) => Some(store.next),
            None => self.attempts().map(|(_, failing)| failing.next).min(),
        }
    }

    fn attempts(&self) -> impl Iterator<Item = (&InstanceKey, &Failing)> {
        let all = self.instances.iter();
        all.filter(|(key, _)| self.barred.contains(*key))
    }

    /// Learns from what was written together. `is_trial`: nothing was to be changed, which is no proof that it could be.
    pub fn learn(
        &mut self,
        keys: &[InstanceKey],
        results: &[Written],
        is_trial: bool,
        now: Instant,
    ) -> News {
        let before = (self.is_all(), self.barred.len());
        let mut failed: BTreeSet<&InstanceKey> = BTreeSet::new();
        let mut unavailable = None;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            match error {
                StoreError::Gone { key } => self.forget(key),
                // The store has looked at what it has.
                StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } => {}
                // The others may have come through while there was room: a full disk takes what fits.
                StoreError::Unavailable { .. } => unavailable = Some(error),
                StoreError::Denied { key, .. } | StoreError::Unknown { key, .. } => {
                    if failed.insert(key) {
                        self.fail(key, error, now);
                    }
                }
            }
        }
        let made = keys.iter().zip(results);
        let made = made.filter(|(key, result)| result.is_ok() && !failed.contains(key));
        let mut has_written = false;
        for (key, _) in made {
            has_written = true;
            self.barred.remove(key);
            if !is_trial {
                self.instances.remove(key);
            }
        }
        if has_written {
            self.fresh.clear();
            self.store = None;
        }
        let is_spread = self.fresh.len() > 1 || self.is_all();
        let told = unavailable.or_else(|| {
            let errors = results.iter().filter_map(|result| result.as_ref().err());
            let mut errors = errors.filter(|error| failed.contains(error.key()));
            errors.next_back().filter(|_| is_spread)
        });
        if let Some(error) = told {
            let failures = self.store.as_ref().map_or(0, |(_, store)| store.failures);
            let failing = Failing::of(error, failures, LONGEST, now);
            self.store = Some((error.key().clone(), failing));
        } else if is_trial && let Some((_, store)) = &mut self.store {
            store.next = now + SOON;
        }
        match (self.is_all(), self.barred.len()).cmp(&before) {
            Ordering::Less => News::Better,
            Ordering::Equal => News::None,
            Ordering::Greater => News::Worse,
        }
    }

    fn fail(&mut self, key: &InstanceKey, error: &StoreError, now: Instant) {
        let failures = self.instances.get(key).map(|before| before.failures);
        if failures.is_none() {
            self.fresh.insert(key.clone());
        }
        let failing = Failing::of(error, failures.unwrap_or_default(), LONGEST_ALONE, now);
        self.instances.insert(key.clone(), failing);
        self.barred.insert(key.clone());
    }

    fn forget(&mut self, key: &InstanceKey) {
        self.instances.remove(key);
        self.barred.remove(key);
        self.fresh.remove(key);
    }

    /// Returns what is to be tried now, each for itself. `own` are the Instances of which this node may give slots.
    pub fn trials<'a>(
        &mut self,
        set: &InstanceSet,
        own: impl Iterator<Item = &'a InstanceKey>,
        now: Instant,
    ) -> Vec<Change> {
        let gone = |key: &&InstanceKey| !set.instances.contains_key(*key);
        let gone: Vec<InstanceKey> = self.instances.keys().filter(gone).cloned().collect();
        for key in gone {
            self.forget(&key);
        }
        let mut tried = Vec::new();
        if let Some((told, store)) = &mut self.store {
            if store.next > now {
                return Vec::new();
            }
            // Not again before this attempt has ended.
            store.next = now + LONGEST;
            let there: Vec<_> = own.filter(|key| set.instances.contains_key(*key)).collect();
            let sound = there.iter().copied();
            let sound: Vec<_> = sound
                .filter(|key| !self.instances.contains_key(*key))
                .collect();
            let turn = usize::try_from(store.failures).unwrap_or_default();
            let turn = turn.checked_rem(sound.len()).unwrap_or_default();
            // The Instance that told it, unless it is one of those that fail alone; then another each time.
            let is_told = set.instances.contains_key(told) && !self.instances.contains_key(told);
            let next = is_told
                .then_some(&*told)
                .or_else(|| sound.get(turn).copied())
                .or_else(|| there.first().copied());
            match next {
                Some(key) => tried.push(key.clone()),
                // There is nothing to claim.
                None => self.store = None,
            }
        } else {
            for (key, failing) in &mut self.instances {
                if self.barred.contains(key) && failing.next <= now {
                    failing.next = now + LONGEST_ALONE;
                    tried.push(key.clone());
                }
            }
        }
        let change = |key: InstanceKey| {
            let uid = set.instances.get(&key)?.metadata.uid.clone();
            let edits = Vec::new();
            Some(Change::Update { key, uid, edits })
        };
        tried.into_iter().filter_map(change).collect()
    }

    /// Returns the problem that is shown.
    pub fn problem(&self) -> Option<Problem> {
        if let Some((_, store)) = &self.store {
            let error = store.problem.clone();
            return Some(Problem::SlotsNotClaimed { error });
        }
        let (instance, failing) = self.attempts().next()?;
        Some(Problem::InstanceNotClaimed {
            instance: instance.clone(),
            error: failing.problem.clone(),
            more: self.barred.len() - 1,
        })
    }
}

impl Failing {
    fn of(error: &StoreError, failures: u32, longest: Duration, now: Instant) -> Self {
        let failures = failures.saturating_add(1);
        Self {
            problem: chain(error),
            failures,
            next: now + backoff::wait(failures).min(longest),
        }
    }
}

#[cfg(test)]
mod tests;
