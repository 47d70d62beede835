//! A served Configuration: its sessions, their devices, and the devices that only the store knows.
//!
//! Knows neither tasks nor the registry.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use leafhost_core::backoff;
use leafhost_core::clock::later;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::device::DeviceKey;
use leafhost_core::device_view::{ConfigurationDevices, DeviceView};
use leafhost_core::handler::Digest;
use leafhost_core::ports::{ConfiguredDiscovery, Handler};
use leafhost_core::presence::Absent;
use leafhost_core::problem::Problem;
use leafhost_core::session::{Devices, Explanation, Opening, Outcome, Property, Report};
use tokio::sync::watch;

use super::events::{self, Event};
use super::published::{CallResult, SessionReport};
use super::session::SessionCommand;
use crate::devices::{Bucket, Grace, Part, SessionDevices, SourceRank, UnconfirmedDevices, merge};

/// Maximum number of devices that are remembered as gone. Further ones stay until a complete answer.
const MOST_GONE: usize = 10_000;

/// Configuration that is served.
#[derive(Debug)]
pub(super) struct ServedConfiguration {
    pub configured: Arc<ConfiguredDiscovery>,
    /// Sessions by source. A session without a running task keeps its devices.
    pub sessions: BTreeMap<String, Box<SourceSession>>,
    /// Source of the Configuration's handler that was accepted first, or has inherited its place, loaded or not.
    pub first: Option<String>,
    pub unseen: UnconfirmedDevices,
    /// Time since which no handler of the name is registered.
    pub without_handler: Option<Timestamp>,
    /// Devices that were last published.
    published: Option<Arc<ConfigurationDevices>>,
    /// True if the published devices may have to change.
    pub stale: bool,
    /// True if [`Self::due`] may have to change.
    pub touched: bool,
    /// Time of the next step, computed when the devices were published.
    pub due: Option<Timestamp>,
    /// Problems of sources that report devices of other sources.
    pub duplicates: Vec<Problem>,
    /// Limits the rate of published changes.
    pub bucket: Bucket,
    log: events::Log,
}

/// Session with one source of the handler.
#[derive(Debug, Default)]
pub(super) struct SourceSession {
    pub rank: SourceRank,
    pub devices: SessionDevices,
    /// Orders of the running task, which ends when this is dropped.
    pub running: Option<watch::Sender<Arc<SessionCommand>>>,
    /// True if the devices of the session count.
    counted: bool,
    /// Digest of the handler with which the session was last opened.
    pub digest: Option<Digest>,
    /// Time before which the task is not started again.
    pub restart: Option<Timestamp>,
    /// Number of answers in a row that were rejected because all sessions together have too much text.
    refusals: u32,
    pub invalid: Vec<FieldProblem>,
    /// True if the last answer with devices was partial.
    partial: bool,
    /// Fault of the last call.
    pub fault: Option<String>,
    pub view: Arc<SessionReport>,
}

/// Result of applying a report.
#[derive(Debug, Default)]
pub(super) struct AppliedReport {
    /// True if the handler answered, that is, did not fault.
    pub answered: bool,
    /// True if the devices have changed.
    pub differs: bool,
    /// Devices that were left out for a new reason.
    pub left_out: Vec<Event>,
}

/// Returns the number of explanations that fit into `most` bytes, and the number of the others.
fn fitting(explained: &[Explanation], most: usize) -> (usize, u64) {
    let mut size = 0;
    let fits = |one: &&Explanation| {
        let text = one.subject.len() + one.rule.len() + one.reason.len();
        size += size_of::<Explanation>() + text;
        size <= most
    };
    let fitting = explained.iter().take_while(fits).count();
    let more = explained.len() - fitting;
    (fitting, u64::try_from(more).unwrap_or(u64::MAX))
}

impl ServedConfiguration {
    pub fn new(configured: Arc<ConfiguredDiscovery>, unseen: UnconfirmedDevices) -> Self {
        Self {
            configured,
            sessions: BTreeMap::new(),
            first: None,
            unseen,
            without_handler: None,
            published: None,
            stale: true,
            touched: true,
            due: None,
            duplicates: Vec::new(),
            bucket: Bucket::default(),
            log: events::Log::default(),
        }
    }

    pub fn handler(&self) -> &str {
        &self.configured.configuration.handler
    }

    pub fn grace(&self) -> Grace {
        Grace(self.configured.configuration.grace)
    }

    /// Includes the devices of further sessions: those of a secondary source count once the devices of the first source are known, or, if
    /// that has no session, once `all_known` is true. They still count if the first source fails later, so that no device in use is
    /// withdrawn.
    fn count(&mut self, all_known: bool) {
        let first = self.first.as_ref();
        let first = first.and_then(|first| self.sessions.get(first));
        let known = first.map_or(all_known, |session| session.devices.is_settled());
        for session in self.sessions.values_mut() {
            if !session.counted && (known || !session.rank.is_secondary) {
                session.counted = true;
                self.stale = true;
            }
        }
    }

    /// Returns the sessions whose devices count.
    fn counting(&self) -> impl Iterator<Item = (&String, &SourceSession)> {
        let sessions = self.sessions.iter();
        sessions
            .filter(|(_, session)| session.counted)
            .map(|(source, session)| (source, &**session))
    }

    /// Returns true if a device that no session has is known to be absent.
    fn is_settled(&self, all_known: bool) -> bool {
        let mut counting = self.counting().peekable();
        all_known
            && counting.peek().is_some()
            && counting.all(|(_, session)| session.devices.is_settled())
    }

    /// Removes devices whose grace period has expired; returns true if a paused session may be opened again.
    pub fn expire(&mut self, all_known: bool, now: Timestamp) -> bool {
        self.touched = true;
        self.count(all_known);
        let grace = self.grace();
        let mut rested = false;
        for session in self.sessions.values_mut() {
            rested |= session.restart.is_some_and(|then| then <= now);
            if session.devices.expire(grace, now) {
                self.stale = true;
            }
        }
        if !self.unseen.is_empty() {
            self.stale = true;
            let mut unseen = std::mem::take(&mut self.unseen);
            let sessions: Vec<_> = self.counting().map(|(_, s)| &s.devices).collect();
            unseen.update(&sessions, all_known, grace, now);
            self.unseen = unseen;
        }
        self.stale |= self.bucket.due().is_some_and(|due| due <= now);
        for session in self.sessions.values_mut() {
            session.devices.remember_departed(&self.unseen);
        }
        rested
    }

    /// Returns all devices of the Configuration, so that they are kept after its sessions have ended.
    pub fn into_unseen(mut self) -> UnconfirmedDevices {
        for session in self.sessions.values() {
            self.unseen.adopt(&session.devices);
        }
        self.unseen
    }

    /// Returns the time of the next step, if one is planned.
    fn deadline(&self, all_known: bool) -> Option<Timestamp> {
        let grace = self.grace();
        let settled = self.is_settled(all_known);
        let sessions = self.sessions.values();
        let of_sessions = sessions
            .clone()
            .filter_map(|session| session.devices.deadline(grace));
        let restarts = sessions.filter_map(|session| session.restart);
        let unseen = self.unseen.deadline(grace).filter(|_| settled);
        let waiting = self.bucket.due();
        of_sessions
            .chain(restarts)
            .chain(unseen)
            .chain(waiting)
            .min()
    }

    /// Returns the devices to publish; the same `Arc` as last time if nothing has changed.
    pub fn publish(&mut self, all_known: bool, now: Timestamp) -> Arc<ConfigurationDevices> {
        if let Some(published) = &self.published
            && !self.stale
            && !self.touched
        {
            return Arc::clone(published);
        }
        self.touched = false;
        let published = self.published(all_known, now);
        self.due = self.deadline(all_known);
        published
    }

    fn published(&mut self, all_known: bool, now: Timestamp) -> Arc<ConfigurationDevices> {
        self.count(all_known);
        let settled = self.is_settled(all_known);
        if let Some(old) = &self.published
            && !self.stale
            && old.absent.is_gone() == settled
        {
            return Arc::clone(old);
        }
        let parts = self.counting().map(|(source, session)| Part {
            source,
            live: session.running.is_some(),
            rank: session.rank,
            devices: &session.devices,
        });
        let key = &self.configured.configuration.key;
        let (devices, duplicates) = merge(key, parts.collect(), &self.unseen);
        let devices = match &self.published {
            Some(old) => self.bucket.pass(&old.devices, devices, now),
            None => devices,
        };
        self.duplicates = duplicates;
        self.stale = false;
        self.log_changes(&devices, now);
        let absent = if settled {
            Absent::GONE
        } else {
            self.unsettled(&devices)
        };
        let new = ConfigurationDevices {
            configured: Arc::clone(&self.configured),
            devices,
            absent,
        };
        match &self.published {
            Some(old) if **old == new => Arc::clone(old),
            _ => Arc::clone(self.published.insert(Arc::new(new))),
        }
    }

    /// Logs the changes of devices since the last publication.
    fn log_changes(&mut self, devices: &BTreeMap<DeviceKey, DeviceView>, now: Timestamp) {
        let none = BTreeMap::new();
        let old = self.published.as_ref().map_or(&none, |old| &old.devices);
        let gone = if self.sessions.is_empty() {
            "its handler is gone"
        } else {
            "its handler no longer reports it"
        };
        let events = events::changes(old, devices, self.grace(), now, gone);
        self.log(events, now);
    }

    /// Logs events of devices.
    pub fn log(&mut self, events: Vec<Event>, now: Timestamp) {
        let key = &self.configured.configuration.key;
        self.log.write(key, events, now);
    }

    /// Logs that the devices are withdrawn because the Configuration was deleted.
    pub fn log_deletion(mut self, now: Timestamp) {
        let Some(old) = self.published.take() else {
            return;
        };
        let gone = "the Configuration was deleted";
        let none = BTreeMap::new();
        let events = events::changes(&old.devices, &none, self.grace(), now, gone);
        self.log(events, now);
    }

    /// Returns the state of absent devices before the sessions have reported everything: those that were published before are gone.
    fn unsettled(&self, devices: &BTreeMap<DeviceKey, DeviceView>) -> Absent<DeviceKey> {
        let mut gone = BTreeSet::new();
        if let Some(old) = &self.published {
            gone.extend(old.devices.keys().cloned());
            if let Absent::Unknown { gone: before } = &old.absent {
                gone.extend(before.iter().cloned());
            }
        }
        gone.retain(|key| !devices.contains_key(key));
        while gone.len() > MOST_GONE {
            gone.pop_first();
        }
        Absent::Unknown { gone }
    }
}

impl SourceSession {
    /// Returns true if the task already runs this handler with these details and properties.
    pub fn is_on(
        &self,
        handler: &Arc<dyn Handler>,
        details: &str,
        properties: &[Property],
    ) -> bool {
        self.running.as_ref().is_some_and(|orders| {
            let order = orders.borrow();
            Arc::ptr_eq(&order.handler, handler)
                && order.spec.details == details
                && order.spec.properties == properties
        })
    }

    /// Returns the [`Opening`] that is passed to the handler.
    pub fn opening(&self, handler: &Arc<dyn Handler>) -> Opening {
        if self.digest.as_ref() == Some(&handler.facts().digest) {
            Opening::Changed
        } else {
            Opening::First
        }
    }

    /// Prepares the session for new details or a new handler, and clears errors of the previous ones.
    pub fn reopened(&mut self, handler: &Arc<dyn Handler>) {
        if self.opening(handler) == Opening::First {
            self.devices.reopen();
            self.partial = false;
        }
        self.devices.limit(handler.facts().most_devices);
        self.digest = Some(handler.facts().digest.clone());
        self.restart = None;
        self.invalid.clear();
        Arc::make_mut(&mut self.view).failures = 0;
    }

    /// Ends the session because its answer was rejected: later answers would refer to it. The session is opened again after a pause.
    pub fn refuse(&mut self, now: Timestamp) {
        self.running = None;
        self.refusals = self.refusals.saturating_add(1);
        self.restart = Some(later(now, backoff::wait(self.refusals)));
    }

    /// Applies the report of a call. At most `explanations` bytes of explanations are kept.
    pub fn take(
        &mut self,
        source: &str,
        report: Report,
        explanations: usize,
        grace: Grace,
        now: Timestamp,
    ) -> AppliedReport {
        let Report {
            outcome,
            mut explained,
            explained_dropped,
            call,
        } = report;
        let (fitting, more) = fitting(&explained, explanations);
        explained.truncate(fitting);
        let explained_dropped = explained_dropped + more;
        let old = &self.view;
        let mut view = SessionReport {
            source: source.to_owned(),
            last_call: Some(now),
            call,
            failures: old.failures + 1,
            left_out: old.left_out.clone(),
            left_out_dropped: old.left_out_dropped,
            skipped: explained,
            skipped_dropped: explained_dropped,
            ..SessionReport::default()
        };
        self.fault = None;
        let mut taken = AppliedReport {
            answered: true,
            ..AppliedReport::default()
        };
        match outcome {
            Outcome::Discovered(discovery) => {
                self.invalid.clear();
                self.refusals = 0;
                view.failures = 0;
                self.partial = match discovery.devices {
                    Devices::Complete(_) => false,
                    Devices::Partial(_) => true,
                    Devices::Unchanged => self.partial,
                };
                view.result = if self.partial {
                    CallResult::Partial
                } else {
                    CallResult::Ok
                };
                if discovery.devices == Devices::Unchanged {
                    if view.skipped.is_empty() {
                        view.skipped.clone_from(&old.skipped);
                        view.skipped_dropped = old.skipped_dropped;
                    }
                    if view.call.denied.is_empty() {
                        view.call.denied.clone_from(&old.call.denied);
                    }
                } else {
                    view.left_out.clone_from(&discovery.left_out.shown);
                    view.left_out_dropped = discovery.left_out.more;
                }
                taken.differs = self.devices.fold(discovery, grace, now);
            }
            Outcome::InvalidDetails(problems) => {
                view.result = CallResult::InvalidDetails;
                self.invalid = problems;
            }
            Outcome::Unavailable(what) => {
                view.result = CallResult::Unavailable;
                view.error = Some(what);
            }
            Outcome::Faulted(fault) => {
                view.result = CallResult::Faulted(fault.reason);
                view.error = Some(fault.message.clone());
                self.fault = Some(fault.to_string());
                taken.answered = false;
            }
        }
        view.devices = self.devices.tracked().len();
        taken.left_out = events::left_out(&self.view.left_out, &view.left_out);
        self.view = Arc::new(view);
        taken
    }
}
