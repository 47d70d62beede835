//! Tracks which Instances cannot be written: single ones, or all. Pure; time is an argument.
//!
//! An Instance is barred alone if its write is denied or its outcome is unknown. All Instances are barred if the store accepts no writes,
//! or if another Instance fails before any write has succeeded again.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::{Change, InstanceSet, StoreError, Written};
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use tokio::time::Instant;

/// Longest time between two attempts while nothing can be written.
const LONGEST: Duration = Duration::from_secs(10);
/// Longest time between two attempts while one Instance cannot be written.
const LONGEST_ALONE: Duration = Duration::from_mins(1);
/// Delay after an attempt with no result.
const SOON: Duration = Duration::from_secs(1);

/// Instances that cannot be written.
#[derive(Debug, Default)]
pub struct Unwritable {
    /// Instances that failed. After a successful attempt an Instance keeps its number of failures until it is written.
    instances: BTreeMap<InstanceKey, Failing>,
    /// Instances of which no slot is allocated.
    barred: BTreeSet<InstanceKey>,
    /// Instances that began to fail since the last successful write.
    fresh: BTreeSet<InstanceKey>,
    /// Instance whose error showed that nothing can be written.
    store: Option<(InstanceKey, Failing)>,
}

#[derive(Debug)]
struct Failing {
    /// Cause and remedy.
    problem: String,
    /// Number of failed writes in a row.
    failures: u32,
    /// Time of the next attempt.
    next: Instant,
}

/// Effect of a write on the set of Instances that can be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transition {
    /// No change.
    Unchanged,
    /// An Instance can no longer be written.
    Failed,
    /// An Instance can be written again.
    Recovered,
}

impl Unwritable {
    /// Returns the Instances of which no slot is allocated.
    pub fn barred(&self) -> &BTreeSet<InstanceKey> {
        &self.barred
    }

    /// Returns true if no Instance can be written.
    pub fn is_all(&self) -> bool {
        self.store.is_some()
    }

    /// Returns true if this Instance cannot be written.
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

    /// Updates the state from the results of one batch. A trial changes nothing, so its success does not prove that a change can be
    /// written.
    pub fn learn(
        &mut self,
        keys: &[InstanceKey],
        results: &[Written],
        is_trial: bool,
        now: Instant,
    ) -> Transition {
        let before = (self.is_all(), self.barred.len());
        let mut failed: BTreeSet<&InstanceKey> = BTreeSet::new();
        let mut unavailable = None;
        for error in results.iter().filter_map(|result| result.as_ref().err()) {
            match error {
                StoreError::Gone { key } => self.forget(key),
                // The store has compared the write with the current object, so it works.
                StoreError::Conflict { .. } | StoreError::AlreadyExists { .. } => {}
                // Other writes of the batch may have succeeded: a full disk takes what fits.
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
        let cause = unavailable.or_else(|| {
            let errors = results.iter().filter_map(|result| result.as_ref().err());
            let mut errors = errors.filter(|error| failed.contains(error.key()));
            errors.next_back().filter(|_| is_spread)
        });
        if let Some(error) = cause {
            let failures = self.store.as_ref().map_or(0, |(_, store)| store.failures);
            let failing = Failing::of(error, failures, LONGEST, now);
            self.store = Some((error.key().clone(), failing));
        } else if is_trial && let Some((_, store)) = &mut self.store {
            store.next = now + SOON;
        }
        match (self.is_all(), self.barred.len()).cmp(&before) {
            Ordering::Less => Transition::Recovered,
            Ordering::Equal => Transition::Unchanged,
            Ordering::Greater => Transition::Failed,
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

    /// Returns the trial writes that are due, each to be applied alone. `own` are the Instances whose slots this node may claim.
    pub fn trials<'a>(
        &mut self,
        set: &InstanceSet,
        own: impl Iterator<Item = &'a InstanceKey>,
        now: Instant,
    ) -> Vec<Change> {
        let is_there = |key: &InstanceKey| set.instances.contains_key(key);
        self.instances.retain(|key, _| is_there(key));
        self.barred.retain(is_there);
        self.fresh.retain(is_there);
        let mut tried = Vec::new();
        if let Some((failed_key, store)) = &mut self.store {
            if store.next > now {
                return Vec::new();
            }
            // Delays other attempts until this one has ended.
            store.next = now + LONGEST;
            let own: Vec<_> = own.filter(|key| set.instances.contains_key(*key)).collect();
            // Tries the Instance that showed the failure, or else one of its own; those that fail alone come last.
            let failed = set.instances.contains_key(failed_key);
            let failed = failed.then_some(&*failed_key).into_iter();
            let mut sound = failed.chain(own.iter().copied());
            let next = sound.find(|key| !self.instances.contains_key(*key));
            match next.or_else(|| own.first().copied()) {
                Some(key) => tried.push(key.clone()),
                // No Instance is left to claim.
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
        let tried = tried.iter().filter_map(|key| set.instances.get(key));
        tried
            .map(|instance| Change::edit(instance, Vec::new()))
            .collect()
    }

    /// Returns the problem to show.
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
