//! The registry: all handlers and their status, one entry for each handler name and source.
//!
//! ```text
//!              first answer                 every session failed, or the source is gone
//!  Waiting ───────────────────► Active ─────────────────────────────► Offline(since)
//!     ▲  ▲                        │  ▲            an answer               │  │
//!     │  └── last Configuration ──┘  └────────────────────────────────────┘  │ five minutes
//!     │      deleted                                                         ▼
//!     └───────── bytes still there: five minutes later, or new bytes ──── removed
//! ```
//!
//! A pure state machine without tasks, devices or a clock; its owner passes events and the time.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::later;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::timeouts;

/// Name of a handler and the source that serves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HandlerKey {
    /// Name that Configurations use.
    pub name: String,
    /// Source: a file name.
    pub source: String,
}

impl HandlerKey {
    /// Creates a key.
    pub fn new(name: &str, source: &str) -> Self {
        Self {
            name: name.to_owned(),
            source: source.to_owned(),
        }
    }
}

/// Phase of an entry, named as in the documentation of the Akri agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, strum::IntoStaticStr)]
pub enum Phase {
    /// Used by no Configuration. Becomes Active with the first answer of a session, Offline when all its sessions fail.
    Waiting,
    /// Answering in at least one session. Becomes Waiting when the last Configuration is deleted, Offline when all sessions fail.
    Active,
    /// Failing in every session since this time, or without a source. Becomes Active with an answer; removed after five minutes.
    Offline(Timestamp),
    /// Removed from the registry until the next attempt at this time; the source still exists.
    Removed(Timestamp),
}

impl Phase {
    /// Returns `Waiting`, `Active`, `Offline` or `Removed`.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// Change of a handler's state that only the passage of time causes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The handler was Offline for too long: its sessions end and its devices are withdrawn.
    Removed(HandlerKey),
    /// The handler is Waiting again and its sessions may be opened.
    Returned(HandlerKey),
}

/// State of a session. Unavailability and rejected details count as answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SessionOutcome {
    Pending,
    Answering,
    Failed,
}

#[derive(Debug)]
struct Entry {
    phase: Phase,
    since: Timestamp,
    gone: bool,
    sessions: BTreeMap<ConfigurationKey, SessionOutcome>,
}

/// All handlers of this node.
#[derive(Debug)]
pub struct Registry {
    eviction: Duration,
    entries: BTreeMap<HandlerKey, Entry>,
}

impl Registry {
    /// Creates an empty registry that removes handlers after they were Offline for `eviction`.
    pub fn new(eviction: Duration) -> Self {
        Self {
            eviction,
            entries: BTreeMap::new(),
        }
    }

    /// Registers a source that serves, or that serves new bytes. A handler that was Offline or removed is Waiting again.
    pub fn register(&mut self, key: &HandlerKey, now: Timestamp) {
        let entry = self.entries.entry(key.clone()).or_insert_with(|| Entry {
            phase: Phase::Waiting,
            since: now,
            gone: false,
            sessions: BTreeMap::new(),
        });
        entry.gone = false;
        for fare in entry.sessions.values_mut() {
            if *fare == SessionOutcome::Failed {
                *fare = SessionOutcome::Pending;
            }
        }
        if matches!(entry.phase, Phase::Offline(_) | Phase::Removed(_)) {
            entry.enter(Phase::Waiting, now);
        }
    }

    /// Records that the source is gone or serves another handler.
    pub fn source_gone(&mut self, key: &HandlerKey, now: Timestamp) {
        let Some(entry) = self.entries.get_mut(key) else {
            return;
        };
        if matches!(entry.phase, Phase::Removed(_)) {
            self.entries.remove(key);
            return;
        }
        entry.gone = true;
        entry.sessions.clear();
        entry.settle(now);
    }

    /// Opens the session of a Configuration, or opens it again after a change.
    pub fn open(&mut self, key: &HandlerKey, configuration: &ConfigurationKey, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key) {
            let fare = entry
                .sessions
                .entry(configuration.clone())
                .or_insert(SessionOutcome::Pending);
            if *fare == SessionOutcome::Failed {
                *fare = SessionOutcome::Pending;
            }
            entry.settle(now);
        }
    }

    /// Closes the session of a Configuration that no longer uses the handler, or cannot use it for now.
    pub fn close(&mut self, key: &HandlerKey, configuration: &ConfigurationKey, now: Timestamp) {
        if let Some(entry) = self.entries.get_mut(key)
            && entry.sessions.remove(configuration).is_some()
        {
            entry.settle(now);
        }
    }

    /// Records that a session `answered`, with devices, errors in the details or unavailability, or else that it failed, by a fault or a
    /// lost connection.
    pub fn called(
        &mut self,
        key: &HandlerKey,
        configuration: &ConfigurationKey,
        answered: bool,
        now: Timestamp,
    ) {
        if let Some(entry) = self.entries.get_mut(key)
            && let Some(fare) = entry.sessions.get_mut(configuration)
        {
            *fare = if answered {
                SessionOutcome::Answering
            } else {
                SessionOutcome::Failed
            };
            entry.settle(now);
        }
    }

    /// Applies the transitions that are due; returns an [`Event`] for each.
    pub fn tick(&mut self, now: Timestamp) -> Vec<Event> {
        let due: Vec<HandlerKey> = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.deadline(self.eviction).is_some_and(|at| at <= now))
            .map(|(key, _)| key.clone())
            .collect();
        due.into_iter()
            .filter_map(|key| {
                let entry = self.entries.get_mut(&key)?;
                entry.since = now;
                match entry.phase {
                    Phase::Removed(_) => {
                        entry.phase = Phase::Waiting;
                        Some(Event::Returned(key))
                    }
                    _ if entry.gone => {
                        self.entries.remove(&key);
                        Some(Event::Removed(key))
                    }
                    _ => {
                        entry.sessions.clear();
                        entry.phase = Phase::Removed(later(now, timeouts::HANDLER_RETRY));
                        Some(Event::Removed(key))
                    }
                }
            })
            .collect()
    }

    /// Returns the next time at which [`Self::tick`] has something to do.
    pub fn deadline(&self) -> Option<Timestamp> {
        self.entries
            .values()
            .filter_map(|entry| entry.deadline(self.eviction))
            .min()
    }

    /// Returns the phase of a handler and the time it began; `None` if the handler is unknown.
    pub fn phase(&self, key: &HandlerKey) -> Option<(Phase, Timestamp)> {
        self.entries
            .get(key)
            .map(|entry| (entry.phase, entry.since))
    }

    /// Returns true if the handler is in the registry.
    pub fn is_registered(&self, key: &HandlerKey) -> bool {
        let phase = self.phase(key);
        phase.is_some_and(|(phase, _)| !matches!(phase, Phase::Removed(_)))
    }

    /// Returns true if a source of that handler is in the registry.
    pub fn serves(&self, name: &str) -> bool {
        let mut keys = self.entries.keys().filter(|key| key.name == name);
        keys.any(|key| self.is_registered(key))
    }

    /// Returns all known handlers in order, including removed ones.
    pub fn keys(&self) -> impl Iterator<Item = &HandlerKey> {
        self.entries.keys()
    }
}

impl Entry {
    fn settle(&mut self, now: Timestamp) {
        let offline = match self.phase {
            Phase::Removed(_) => return,
            Phase::Offline(_) => self.phase,
            Phase::Waiting | Phase::Active => Phase::Offline(now),
        };
        let mut fares = self.sessions.values();
        let next = if self.gone {
            offline
        } else if self.sessions.is_empty() {
            Phase::Waiting
        } else if fares.clone().any(|&fare| fare == SessionOutcome::Answering) {
            Phase::Active
        } else if fares.all(|&fare| fare == SessionOutcome::Failed) {
            offline
        } else {
            self.phase
        };
        if next != self.phase {
            self.enter(next, now);
        }
    }

    fn enter(&mut self, phase: Phase, now: Timestamp) {
        self.phase = phase;
        self.since = now;
    }

    /// Returns the time of the next transition. Removal waits for sessions that have not answered yet.
    fn deadline(&self, eviction: Duration) -> Option<Timestamp> {
        match self.phase {
            Phase::Removed(retry) => Some(retry),
            Phase::Offline(since)
                if !self
                    .sessions
                    .values()
                    .any(|&fare| fare == SessionOutcome::Pending) =>
            {
                Some(later(since, eviction))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
