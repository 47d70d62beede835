//! Registrations: the registered handlers, and those among them that no longer answer. The caller passes in the time, so
//! nothing here depends on a clock.
//!
//! The agent's registry decides whether a handler is Waiting, Active or Offline; it goes by sessions and by the sources that exist. So a
//! handler that no session uses and that does not answer is not a source until it answers a probe or registers again:
//!
//! ```text
//!             registers                session or probe fails, and unused for a moment
//!  (unknown) ───────────► source there ─────────────────────────────────────────────────────► probed every minute
//!      ▲                       ▲                    probe answered, registers                   │      │ an hour
//!      │                       └────────────────────────────────────────────────────────────────┘      │
//!      └───────────────────────────────────────────────────────────────────────────────────────────────┘
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use leafhost_core::grants_file;
use leafhost_core::handler::Digest;
use leafhost_core::ports::SourceProblem;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use crate::endpoint::Endpoint;
use crate::timeouts::{FIRST_CONNECTION, FORGET, LOOK, REFUSED, REGISTER_SPACING, UNUSED};

/// Maximum number of external handlers: a third of all handlers.
pub const MOST: usize = 32;
/// Maximum number of names that one endpoint may serve.
pub const MOST_NAMES: usize = 4;
/// Maximum number of endpoints per name; each endpoint has its own streams and devices.
const MOST_OF_NAME: usize = 4;
/// Maximum number of refusals that are reported.
const MOST_REFUSALS: usize = 16;

/// Registration of a handler.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Registered {
    /// Name of the handler, as Configurations use it.
    pub name: String,
    pub endpoint: Endpoint,
    /// True if several nodes may see the handler's devices.
    pub shared: bool,
    /// Id of the user that registered the handler.
    pub user: u32,
    /// Number that distinguishes registrations of one address, because another pod may have the address by now. Absent for a socket.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<u32>,
}

impl Registered {
    /// Returns the name of the source that this registration becomes.
    pub fn source(&self, folder: &Path) -> String {
        let mark = self.mark.map(|mark| format!("~{mark:08x}"));
        format!(
            "{}@{}{}",
            self.name,
            self.endpoint.file_name(folder),
            mark.unwrap_or_default()
        )
    }

    pub fn grants_file(&self) -> String {
        format!("{}{}", self.name, grants_file::SUFFIX)
    }

    /// Returns true if name and endpoint are equal, so that both may be one handler.
    fn is_at(&self, other: &Self) -> bool {
        self.name == other.name && self.endpoint == other.endpoint
    }
}

/// A handler that has registered.
#[derive(Debug)]
struct Entry {
    registered: Registered,
    /// Changes when the agent must start over with the handler: the source then has another digest.
    generation: u32,
    /// `Instant` at which a registration last had an effect.
    taken: Instant,
    sessions: usize,
    /// Number of sessions that have a stream to the handler.
    streams: usize,
    /// `Instant` at which the last session was closed.
    unused_since: Instant,
    /// `Instant` since which the handler has not answered.
    silent_since: Option<Instant>,
    /// `Instant` of the next probe if no session uses the handler. Without probes, a handler that ended unused would keep its place for ever.
    look_at: Instant,
    /// `Instant` at which a handler in the network registered in this run.
    registered_at: Option<Instant>,
    /// Connection that was made at that registration.
    first: Option<FirstConnection>,
}

impl Entry {
    /// Creates an entry for a registration at `now`. A handler in the network is probed at once: later another pod may have its address.
    fn new(registered: Registered, now: Instant) -> Self {
        let is_marked = registered.mark.is_some();
        Self {
            registered,
            generation: 0,
            taken: now,
            sessions: 0,
            streams: 0,
            unused_since: now,
            silent_since: None,
            look_at: if is_marked { now } else { now + LOOK },
            registered_at: is_marked.then_some(now),
            first: None,
        }
    }

    /// Returns the state of the connection that is made at registration.
    fn first(&self, now: Instant) -> First {
        match (&self.first, self.registered_at) {
            (Some(first), _) if first.holds() => First::Holds(first.clone()),
            (None, Some(at)) if now < at + FIRST_CONNECTION => First::ToCome,
            _ => First::Ended,
        }
    }

    /// Returns the `Instant` from which the handler is not a source, if there is one.
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

    /// Starts over with the handler.
    fn renew(&mut self, now: Instant) {
        self.generation = self.generation.wrapping_add(1);
        self.silent_since = None;
        self.look_at = now + LOOK;
        self.taken = now;
    }

    fn bytes(&self) -> Vec<u8> {
        // Serialization cannot fail: the value has only strings and numbers.
        serde_json::to_vec(&(&self.registered, self.generation)).unwrap_or_default()
    }
}

/// A registered handler as a source of the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Source {
    pub registered: Registered,
    /// Content whose digest is the version of the source.
    pub bytes: Vec<u8>,
}

impl Source {
    /// Returns the SHA-256 digest of `bytes`.
    pub fn digest(&self) -> Digest {
        let digest = Sha256::digest(&self.bytes);
        Digest(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

/// Registrations of external handlers, and recent refusals.
#[derive(Debug, Default)]
pub struct Registrations {
    /// Registrations by source name.
    entries: BTreeMap<String, Entry>,
    refusals: BTreeMap<String, (SourceProblem, Instant)>,
    /// True if the registrations differ from those that were last written to disk.
    pub is_unkept: bool,
}

impl Registrations {
    /// Restores the registrations that an earlier run stored for this folder; each handler is probed at once.
    pub fn of_earlier_run(kept: Vec<Registered>, folder: &Path, now: Instant) -> Self {
        let is_here = |registered: &Registered| match &registered.endpoint {
            Endpoint::Socket(path) => path.starts_with(folder),
            Endpoint::Network(_) => true,
        };
        let kept = kept.into_iter().filter(is_here);
        let entries = kept.take(MOST).map(|registered| {
            let mut entry = Entry::new(registered, now);
            (entry.look_at, entry.registered_at) = (now, None);
            (entry.registered.source(folder), entry)
        });
        Self {
            entries: entries.collect(),
            ..Self::default()
        }
    }

    /// Registers a handler. A handler that is already registered has restarted, or has noticed that no agent uses it. An address belongs to
    /// the same handler only while the connection that was made to it before holds.
    ///
    /// # Errors
    /// Returns the reason, with the remedy, if there are too many handlers.
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
                if matches!(entry.first(now), First::Holds(_)) || is_now {
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
                "{MOST_NAMES} handlers, the maximum, have already registered this endpoint; let each handler serve on a socket of its own"
            ));
        }
        let of_name = self
            .entries
            .values()
            .filter(|entry| entry.registered.name == registered.name && entry.is_source(now));
        if of_name.count() >= MOST_OF_NAME {
            return Err(format!(
                "{MOST_OF_NAME} endpoints, the maximum, have already registered this name; stop those that you do not want"
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
                    "{MOST} external handlers, the maximum, have already registered; stop those that you do not want"
                ));
            };
            self.entries.remove(&gone);
        }
        self.entries.insert(source, Entry::new(registered, now));
        self.is_unkept = true;
        Ok(())
    }

    pub fn refuse(&mut self, handler: &str, problem: SourceProblem, now: Instant) {
        if self.refusals.len() >= MOST_REFUSALS && !self.refusals.contains_key(handler) {
            let oldest = self.refusals.iter().min_by_key(|(_, (_, at))| *at);
            if let Some(oldest) = oldest.map(|(handler, _)| handler.clone()) {
                self.refusals.remove(&oldest);
            }
        }
        self.refusals.insert(handler.to_owned(), (problem, now));
    }

    /// Removes the refusal of a handler that is now accepted.
    pub fn accepted(&mut self, handler: &str) {
        self.refusals.remove(handler);
    }

    /// Records an event of a session of `source`.
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

    /// Returns the state of the connection that is made to a handler in the network when it registers. Within [`FIRST_CONNECTION`] after
    /// the registration, a missing connection may still be made.
    pub fn first_connection(&self, source: &str, now: Instant) -> First {
        let entry = self.entries.get(source);
        entry.map_or(First::Ended, |entry| entry.first(now))
    }

    /// Records the connection that was made at registration, and returns it while it holds; the first of two is kept.
    pub fn connected(&mut self, source: &str, first: FirstConnection) -> Option<FirstConnection> {
        let entry = self.entries.get_mut(source)?;
        let kept = entry.first.get_or_insert(first);
        kept.holds().then(|| kept.clone())
    }

    /// Returns the handlers to probe now with their source names, and schedules their next probe.
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

    /// Records the result of a probe.
    pub fn looked(&mut self, source: &str, is_there: bool, now: Instant) {
        let Some(entry) = self.entries.get_mut(source) else {
            return;
        };
        if !is_there && matches!(entry.first(now), First::ToCome) {
            // The handler may register before it serves.
            entry.look_at = now + UNUSED;
        } else if !is_there {
            entry.silent_since.get_or_insert(now);
        } else if entry.silent_since.is_some() {
            entry.renew(now);
        }
    }

    /// Removes handlers and refusals that are out of date.
    pub fn tidy(&mut self, now: Instant) {
        let before = self.entries.len();
        let is_due = |at: Option<Instant>| at.is_some_and(|at| at <= now);
        self.entries
            .retain(|_, entry| !is_due(entry.forgotten_at()));
        self.is_unkept |= self.entries.len() != before;
        self.refusals.retain(|_, (_, at)| now < *at + REFUSED);
    }

    /// Returns the `Instant` of the next change that is due, if any.
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

    /// Returns the handlers that are sources at `now`, by source name.
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

    /// Returns the recent refusals with their reasons.
    pub fn refusals(&self) -> impl Iterator<Item = &SourceProblem> {
        self.refusals.values().map(|(problem, _)| problem)
    }

    /// Returns all registrations if they have changed since the last call, so that the caller stores them.
    pub fn take_unkept(&mut self) -> Option<Vec<Registered>> {
        let is_unkept = std::mem::take(&mut self.is_unkept);
        let all = self.entries.values();
        is_unkept.then(|| all.map(|entry| entry.registered.clone()).collect())
    }
}

/// Connection to a handler in the network, made when it registers. An address does not prove who has it later, but while
/// this connection holds, its peer is the same process. So properties, which may be credentials, are sent only over it.
#[derive(Debug, Clone)]
pub struct FirstConnection {
    /// Channel over this connection alone; it never reconnects.
    pub channel: Channel,
    pub ended: CancellationToken,
}

impl FirstConnection {
    /// Returns true until the connection ends.
    pub fn holds(&self) -> bool {
        !self.ended.is_cancelled()
    }

    #[cfg(test)]
    pub fn mk(ended: CancellationToken) -> Self {
        let channel = tonic::transport::Endpoint::from_static("http://localhost").connect_lazy();
        Self { channel, ended }
    }
}

/// State of the first connection.
#[derive(Debug, Clone)]
pub enum First {
    /// Not made yet, but still allowed.
    ToCome,
    /// Made, and open since then.
    Holds(FirstConnection),
    /// Ended, or not made in time.
    Ended,
}

/// An event of a session.
#[derive(Debug, Clone, Copy)]
pub enum SessionEvent {
    Opened,
    Closed,
    /// The handler began to answer.
    StreamBegun,
    /// The handler or the connection ended the answer.
    StreamEnded,
    /// The handler sent a message.
    Answered,
    /// The handler could not be reached, or its message was not a valid answer.
    Failed,
}

#[cfg(test)]
mod tests;
