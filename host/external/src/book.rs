//! The book of registrations: which handlers there are, and which of them are sought. Pure: time is given.
//!
//! Whether a handler is Waiting, Active or Offline is in the agent's registry, which goes by sessions and by which sources there
//! are. So a handler that no session uses and that does not answer is no source, until it answers a look or registers again:
//!
//! ```text
//!             registers                session fails, or a look in vain, and unused for a moment
//!  (unknown) ───────────► source there ─────────────────────────────────────────────────────► sought: a look a minute
//!      ▲                       ▲                    a look in time, registers                   │      │ an hour
//!      │                       └────────────────────────────────────────────────────────────────┘      │
//!      └───────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use leafhost_core::handler::Digest;
use leafhost_core::ports::SourceProblem;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;

use crate::endpoint::Endpoint;
use crate::first_connection::FirstConnection;
use crate::timeouts::{FIRST_CONNECTION, FORGET, LOOK, REFUSED, REGISTER_SPACING, UNUSED};

/// The most external handlers: a third of all.
pub const MOST: usize = 32;
/// The most names that one endpoint may serve.
pub const MOST_NAMES: usize = 4;
/// The most endpoints of one name: each has its own streams and devices.
const MOST_OF_NAME: usize = 4;
/// The most refusals that are told.
const MOST_REFUSALS: usize = 16;

/// A handler as it registers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registered {
    /// What Configurations call it.
    pub name: String,
    /// Where it serves.
    pub endpoint: Endpoint,
    /// Whether its devices may be seen from many nodes.
    pub shared: bool,
    /// The user that has registered it.
    pub user: u32,
    /// Tells registrations of one address apart: another pod may have it by now. Absent for a socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
}

impl Registered {
    /// The name of the source that it is.
    pub fn source(&self, folder: &Path) -> String {
        let mark = self.mark.map(|mark| format!("~{mark:08x}"));
        format!(
            "{}@{}{}",
            self.name,
            self.endpoint.file_name(folder),
            mark.unwrap_or_default()
        )
    }

    /// Whether it may be the same handler.
    fn is_at(&self, other: &Self) -> bool {
        self.name == other.name && self.endpoint == other.endpoint
    }
}

/// A handler that is known.
#[derive(Debug)]
struct Entry {
    registered: Registered,
    /// Another one is another source to the agent, which then begins anew with it.
    generation: u32,
    /// When a registration last had an effect.
    taken: Instant,
    sessions: usize,
    /// Sessions that the handler has a stream with.
    streams: usize,
    /// When the last session was closed.
    unused_since: Instant,
    /// Since when it has not answered.
    silent_since: Option<Instant>,
    /// When it is looked for, if no session uses it: one that has gone without being used would keep its place for ever.
    look_at: Instant,
    /// When a handler in the network registered, in this run.
    registered_at: Option<Instant>,
    /// The connection that was made then.
    first: Option<FirstConnection>,
}

impl Entry {
    fn new(registered: Registered, now: Instant) -> Self {
        Self {
            registered,
            generation: 0,
            taken: now,
            sessions: 0,
            streams: 0,
            unused_since: now,
            silent_since: None,
            look_at: now + LOOK,
            registered_at: None,
            first: None,
        }
    }

    /// Registers now. One in the network is connected to at once: later another pod may have its address.
    fn registers(registered: Registered, now: Instant) -> Self {
        let is_marked = registered.mark.is_some();
        let mut entry = Self::new(registered, now);
        if is_marked {
            (entry.look_at, entry.registered_at) = (now, Some(now));
        }
        entry
    }

    /// Whether the connection that was made when it registered has held since.
    fn is_held(&self) -> bool {
        self.first.as_ref().is_some_and(FirstConnection::holds)
    }

    /// Whether the connection of its registration may still be made.
    fn is_to_be_reached(&self, now: Instant) -> bool {
        let since = self.registered_at.filter(|_| self.first.is_none());
        since.is_some_and(|at| now < at + FIRST_CONNECTION)
    }

    /// From when on it is no source.
    fn withheld_from(&self) -> Option<Instant> {
        (self.silent_since.is_some() && self.sessions == 0).then(|| self.unused_since + UNUSED)
    }

    fn is_source(&self, now: Instant) -> bool {
        self.withheld_from().is_none_or(|then| now < then)
    }

    fn look_at(&self) -> Option<Instant> {
        (self.sessions == 0).then_some(self.look_at)
    }

    fn forgotten_at(&self) -> Option<Instant> {
        let silent = self.silent_since.filter(|_| self.sessions == 0)?;
        Some(silent.max(self.unused_since) + FORGET)
    }

    /// The agent is to begin anew with it.
    fn renew(&mut self, now: Instant) {
        self.generation = self.generation.wrapping_add(1);
        self.silent_since = None;
        self.look_at = now + LOOK;
        self.taken = now;
    }

    fn bytes(&self) -> Vec<u8> {
        // Cannot fail: there are only texts and numbers.
        serde_json::to_vec(&(&self.registered, self.generation)).unwrap_or_default()
    }
}

/// A source that there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    /// The handler.
    pub registered: Registered,
    /// What the agent knows its version by.
    pub bytes: Vec<u8>,
}

impl Source {
    /// Of the bytes.
    pub fn digest(&self) -> Digest {
        let digest = Sha256::digest(&self.bytes);
        Digest(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// All registrations.
#[derive(Debug, Default)]
pub struct Book {
    /// By source name.
    entries: BTreeMap<String, Entry>,
    refusals: BTreeMap<String, (SourceProblem, Instant)>,
    /// Whether the registrations are others than those that were kept last.
    pub is_unkept: bool,
}

impl Book {
    /// With what an earlier run kept of this folder: each is looked for at once.
    pub fn of_earlier_run(kept: Vec<Registered>, folder: &Path, now: Instant) -> Self {
        let is_here = |registered: &Registered| match &registered.endpoint {
            Endpoint::Socket(path) => path.starts_with(folder),
            Endpoint::Network(_) => true,
        };
        let kept = kept.into_iter().filter(is_here);
        let entries = kept.take(MOST).map(|registered| {
            let mut entry = Entry::new(registered, now);
            entry.look_at = now;
            (entry.registered.source(folder), entry)
        });
        Self {
            entries: entries.collect(),
            ..Self::default()
        }
    }

    /// A handler registers. It may be known already; then it has started again, or has noticed that nobody listens to it. An address is
    /// that of the same handler only while the connection holds that was made to it before.
    ///
    /// # Errors
    /// There are too many; the text names the remedy.
    pub fn register(
        &mut self,
        mut registered: Registered,
        folder: &Path,
        now: Instant,
    ) -> Result<(), String> {
        if registered.mark.is_some() {
            let known = self.entries.iter();
            let mut known = known.filter(|(_, entry)| entry.registered.is_at(&registered));
            if let Some((source, entry)) = known.next() {
                let since = entry.registered_at;
                let is_now = since.is_some_and(|at| now < at + REGISTER_SPACING);
                if entry.is_held() || is_now {
                    registered.mark = entry.registered.mark;
                } else {
                    let source = source.clone();
                    self.entries.remove(&source);
                    self.is_unkept = true;
                }
            }
        }
        let source = registered.source(folder);
        if let Some(entry) = self.entries.get_mut(&source) {
            let differs = entry.registered != registered;
            self.is_unkept |= differs;
            if differs || (entry.streams == 0 && now >= entry.taken + REGISTER_SPACING) {
                entry.registered = registered;
                entry.renew(now);
            }
            return Ok(());
        }
        let same = |entry: &&Entry| entry.registered.endpoint == registered.endpoint;
        if self.entries.values().filter(same).count() >= MOST_NAMES {
            return Err(format!(
                "{MOST_NAMES} handlers have registered this endpoint already, which is the most; let each handler serve on a socket of its own"
            ));
        }
        let of_name = self
            .entries
            .values()
            .filter(|entry| entry.registered.name == registered.name && entry.is_source(now));
        if of_name.count() >= MOST_OF_NAME {
            return Err(format!(
                "{MOST_OF_NAME} endpoints have registered this name already, which is the most; stop those that are not wanted"
            ));
        }
        if self.entries.len() >= MOST {
            let gone = self
                .entries
                .iter()
                .filter(|(_, entry)| !entry.is_source(now));
            let gone = gone.min_by_key(|(_, entry)| entry.silent_since);
            let Some(gone) = gone.map(|(source, _)| source.clone()) else {
                return Err(format!(
                    "{MOST} external handlers have registered already, which is the most; stop those that are not wanted"
                ));
            };
            self.entries.remove(&gone);
        }
        self.entries
            .insert(source, Entry::registers(registered, now));
        self.is_unkept = true;
        Ok(())
    }

    /// A handler was refused.
    pub fn refuse(&mut self, handler: &str, problem: SourceProblem, now: Instant) {
        if self.refusals.len() >= MOST_REFUSALS && !self.refusals.contains_key(handler) {
            let oldest = self.refusals.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(handler, _)| handler.clone()) {
                self.refusals.remove(&oldest);
            }
        }
        self.refusals.insert(handler.to_owned(), (problem, now));
    }

    /// A handler was not refused this time.
    pub fn accepted(&mut self, handler: &str) {
        self.refusals.remove(handler);
    }

    /// Something has happened to a session of a source.
    pub fn session(&mut self, source: &str, event: SessionEvent, now: Instant) {
        let Some(entry) = self.entries.get_mut(source) else {
            return;
        };
        match event {
            SessionEvent::Opened => entry.sessions += 1,
            SessionEvent::Closed => {
                entry.sessions = entry.sessions.saturating_sub(1);
                entry.unused_since = now;
                entry.look_at = now + LOOK;
            }
            SessionEvent::StreamBegun => entry.streams += 1,
            SessionEvent::StreamEnded => entry.streams = entry.streams.saturating_sub(1),
            SessionEvent::Answered => entry.silent_since = None,
            SessionEvent::Failed => drop(entry.silent_since.get_or_insert(now)),
        }
    }

    /// Tells the connection that was made to a handler in the network when it registered. While there is none, one may be made for a
    /// moment.
    pub fn first_connection(&self, source: &str, now: Instant) -> First {
        let Some(entry) = self.entries.get(source) else {
            return First::Ended;
        };
        match &entry.first {
            Some(first) if first.holds() => First::Holds(first.clone()),
            _ if entry.is_to_be_reached(now) => First::ToCome,
            _ => First::Ended,
        }
    }

    /// Such a connection was made. Of two the first counts.
    pub fn connected(&mut self, source: &str, first: FirstConnection) {
        if let Some(entry) = self.entries.get_mut(source) {
            entry.first.get_or_insert(first);
        }
    }

    /// The handlers to be looked for now, with their source names.
    pub fn take_looks(&mut self, now: Instant) -> Vec<(String, Registered)> {
        let mut looks = Vec::new();
        for (source, entry) in &mut self.entries {
            if entry.look_at().is_some_and(|at| at <= now) {
                entry.look_at = now + LOOK;
                looks.push((source.clone(), entry.registered.clone()));
            }
        }
        looks
    }

    /// What came of a look.
    pub fn looked(&mut self, source: &str, is_there: bool, now: Instant) {
        let Some(entry) = self.entries.get_mut(source) else {
            return;
        };
        if !is_there && entry.is_to_be_reached(now) {
            // It may register before it serves.
            entry.look_at = now + UNUSED;
        } else if !is_there {
            entry.silent_since.get_or_insert(now);
        } else if entry.silent_since.is_some() {
            entry.renew(now);
        }
    }

    /// Forgets what is long over.
    pub fn tidy(&mut self, now: Instant) {
        let before = self.entries.len();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.entries
            .retain(|_, entry| !is_due(entry.forgotten_at()));
        self.is_unkept |= self.entries.len() != before;
        self.refusals.retain(|_, (_, at)| now < *at + REFUSED);
    }

    /// When there is something to do next.
    pub fn deadline(&self, now: Instant) -> Option<Instant> {
        let of_entry = |entry: &Entry| {
            let withheld = entry.withheld_from().filter(|then| now < *then);
            let times = [withheld, entry.look_at(), entry.forgotten_at()];
            times.into_iter().flatten().min()
        };
        let entries = self.entries.values().filter_map(of_entry);
        let refusals = self.refusals.values().map(|(_, at)| *at + REFUSED);
        entries.chain(refusals).min()
    }

    /// The sources there are.
    pub fn sources(&self, now: Instant) -> BTreeMap<String, Source> {
        let there = self
            .entries
            .iter()
            .filter(|(_, entry)| entry.is_source(now));
        there
            .map(|(name, entry)| {
                let source = Source {
                    registered: entry.registered.clone(),
                    bytes: entry.bytes(),
                };
                (name.clone(), source)
            })
            .collect()
    }

    /// What was refused and why.
    pub fn refusals(&self) -> impl Iterator<Item = &SourceProblem> {
        self.refusals.values().map(|(problem, _)| problem)
    }

    /// The registrations to be kept, if they are others than the last ones.
    pub fn take_unkept(&mut self) -> Option<Vec<Registered>> {
        let is_unkept = std::mem::take(&mut self.is_unkept);
        let all = self.entries.values();
        is_unkept.then(|| all.map(|entry| entry.registered.clone()).collect())
    }
}

/// How the connection stands that was made to a handler in the network when it registered.
#[derive(Debug, Clone)]
pub enum First {
    /// It may still be made.
    ToCome,
    /// It has held since.
    Holds(FirstConnection),
    /// It has ended, or was not made in time.
    Ended,
}

/// What happens to a session.
#[derive(Debug, Clone, Copy)]
pub enum SessionEvent {
    /// It was opened.
    Opened,
    /// It was closed.
    Closed,
    /// The handler has begun to answer.
    StreamBegun,
    /// The handler, or the connection to it, has ended the answer.
    StreamEnded,
    /// The handler has said something.
    Answered,
    /// It could not be reached, or what it said is no answer.
    Failed,
}

#[cfg(test)]
mod tests;
