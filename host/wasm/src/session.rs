//! A session: calls a handler again and again, when its wakes come true.
//!
//! Knows no guest: what a call is, [`Caller`] knows; so the rules of time are tested without one.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::session::{CallStats, Explanation, Opening, Outcome, Report, Session};
use leafhost_core::timeouts::{WAKE_AFTER_MAX, WAKE_AFTER_MIN};
use leafhost_net::Datagram;
use leafhost_udev::Event;
use tokio::time::Instant;

use crate::cpu::thread_time;
use crate::cursor::{Cursor, Cursors};
use crate::timeouts::{COMPARING, INSTEAD_OF_EVENTS};

mod backoff;
mod pace;
mod subscriptions;
mod wakes;

use pace::Pace;
pub(crate) use subscriptions::{DeviceSubscription, NetworkSubscription, Subscriptions};
use subscriptions::{EventBuffer, SessionEvent};
use wakes::Pending;
pub(crate) use wakes::{Filter, Wakes};

/// Makes one call.
#[async_trait]
pub(crate) trait Caller: Send + Sync + 'static {
    /// Calls the handler. Dropping the future ends the call.
    async fn call(&self, ask: Ask) -> Called;
}

/// What a call is told besides what is the same for every call of the session.
#[derive(Debug, Default, Clone, PartialEq)]
pub(crate) struct Ask {
    /// Why now.
    pub(crate) events: Vec<CallReason>,
    /// More came than are kept.
    pub(crate) events_lost: bool,
    /// What the last answer left.
    pub(crate) cursor: Option<Arc<Cursor>>,
}

/// Why a call is made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum CallReason {
    /// The session is new.
    First,
    /// Details, properties or grants changed.
    Changed,
    /// The time has come.
    Timer,
    /// A device event.
    Udev(Arc<Event>),
    /// The granted interfaces changed.
    Network,
    /// A datagram, and how the wake spells its group.
    Multicast(Arc<str>, Arc<Datagram>),
}

impl CallReason {
    /// What `status` calls it.
    fn label(&self) -> &'static str {
        match self {
            Self::First => "first",
            Self::Changed => "changed",
            Self::Timer => "timer",
            Self::Udev(_) => "udev",
            Self::Network => "network",
            Self::Multicast(..) => "multicast",
        }
    }
}

/// What came of a call.
#[derive(Debug, Clone)]
pub(crate) struct Called {
    /// What was said.
    pub(crate) outcome: Outcome,
    /// Things seen and left out.
    pub(crate) explained: Vec<Explanation>,
    /// How many more.
    pub(crate) explained_dropped: u64,
    /// What it cost; why it was made and what comes next is filled in by the session.
    pub(crate) stats: CallStats,
    /// What an answer with devices leaves for the next call.
    pub(crate) next: Option<Next>,
}

/// What an answer leaves for the next call.
#[derive(Debug, Clone, Default)]
pub(crate) struct Next {
    /// When.
    pub(crate) wakes: Wakes,
    /// The cursor.
    pub(crate) cursor: Option<Vec<u8>>,
}

/// A session of a handler that is called.
pub(crate) struct WakingSession {
    caller: Arc<dyn Caller>,
    subscriptions: Subscriptions,
    phase: Phase,
    /// The wakes of the last answer: in force until the next one, also after calls that failed.
    wakes: Arc<Wakes>,
    /// How long device events have been compared since the last report.
    compared: Duration,
    /// Handed back at the next call.
    cursor: Option<Arc<Cursor>>,
    /// What it counts among.
    cursors: Arc<Cursors>,
    /// What the next call is told.
    pending: Pending,
    /// When the handler is called if nothing wakes it before.
    timer: Option<Instant>,
    /// When it is told of an event again, whose consequences came later than the event.
    again: Option<(Instant, Arc<Event>)>,
    /// How close calls may be.
    pace: Pace,
    /// No call begins before.
    not_before: Instant,
    /// How many calls in a row had no answer with devices.
    failures: u32,
}

enum Phase {
    /// A call runs. What it was told, for it to be told again if it fails, and what happened since it began.
    Calling {
        call: Pin<Box<dyn Future<Output = Called> + Send>>,
        /// How long after its time the call was asked for.
        late: Duration,
        told: Pending,
        since: EventBuffer,
    },
    /// Until a wake comes true.
    Waiting,
    /// The details are wrong: only a new session calls again.
    Refused,
}

impl WakingSession {
    /// A session that has not called yet.
    pub(crate) fn new(
        caller: Arc<dyn Caller>,
        opening: Opening,
        subscriptions: Subscriptions,
        cursors: Arc<Cursors>,
    ) -> Self {
        let opening = match opening {
            Opening::First => CallReason::First,
            Opening::Changed => CallReason::Changed,
        };
        let mut pending = Pending::default();
        pending.push(opening);
        Self {
            caller,
            subscriptions,
            phase: Phase::Waiting,
            wakes: Arc::default(),
            compared: Duration::ZERO,
            cursor: None,
            cursors,
            pending,
            timer: None,
            again: None,
            pace: Pace::default(),
            not_before: Instant::now(),
            failures: 0,
        }
    }

    /// Takes what is due, and begins a call if there is a reason and it may.
    fn begin_if_due(&mut self) {
        let now = Instant::now();
        self.replace_lost_events(now);
        if now < self.not_before {
            return;
        }
        let mut late = Duration::ZERO;
        if let Some(at) = self.timer.take_if(|at| *at <= now) {
            late = now.duration_since(at.max(self.not_before));
            self.pending.push(CallReason::Timer);
        }
        if let Some((_, event)) = self.again.take_if(|(at, _)| *at <= now) {
            self.pending.push(CallReason::Udev(event));
        }
        if !self.pending.is_reason() {
            return;
        }
        if self.pending.is_caused_by_network() {
            self.pace.begin(now);
        }
        let told = std::mem::take(&mut self.pending);
        let ask = Ask {
            events: told.events().to_vec(),
            events_lost: told.lost(),
            // Kept, too: a call that fails leaves it as it was.
            cursor: self.cursor.clone(),
        };
        let caller = self.caller.clone();
        self.phase = Phase::Calling {
            call: Box::pin(async move { caller.call(ask).await }),
            late,
            told,
            since: EventBuffer::default(),
        };
    }

    /// Sets the timer where the monitor has ended since device events were asked for.
    fn replace_lost_events(&mut self, now: Instant) {
        let ended = self.subscriptions.devices.is_none() && !self.wakes.udev.is_empty();
        if ended && self.failures == 0 {
            let instead = now + INSTEAD_OF_EVENTS;
            self.timer = Some(self.timer.map_or(instead, |at| at.min(instead)));
        }
    }

    /// When the next call is due if no event comes.
    fn due_at(&self) -> Option<Instant> {
        let due = if self.pending.is_reason() {
            Some(self.not_before)
        } else {
            let again = self.again.as_ref().map(|(at, _)| *at);
            self.timer.into_iter().chain(again).min()
        };
        due.map(|at| at.max(self.not_before))
    }

    /// Events that came while no call runs, or while the last one did.
    fn handle(&mut self, events: Vec<SessionEvent>) {
        for event in events {
            match event {
                SessionEvent::Device(event) => self.device(event),
                SessionEvent::DevicesLost => {
                    let subscribed = self.subscriptions.devices.is_some();
                    if subscribed && !self.wakes.udev.is_empty() {
                        self.pending.lose();
                    }
                }
                SessionEvent::Network if self.wakes.network => {
                    self.pending.push(CallReason::Network);
                }
                SessionEvent::Datagram(datagram) => self.datagram(datagram),
                SessionEvent::DatagramsLost if !self.wakes.multicast.is_empty() => {
                    self.pending.lose();
                }
                SessionEvent::Network | SessionEvent::DatagramsLost => {}
            }
        }
    }

    fn device(&mut self, event: Arc<Event>) {
        let Some(devices) = &self.subscriptions.devices else {
            return;
        };
        let mut rules = self.wakes.udev.iter();
        // Where the next call is to look at everything, it is no matter what else happened.
        let wakes = if self.pending.is_over() {
            rules.next().is_some()
        } else {
            let (begun, before) = (thread_time(), self.compared);
            let compared = || before + thread_time().saturating_sub(begun);
            let in_time = || compared() < COMPARING;
            let wakes = rules.any(|rule| rule.wakes_on(&event, &devices.allowed, &in_time));
            self.compared = compared();
            wakes
        };
        if !wakes {
            return;
        }
        if let Some(settle) = event.settle {
            self.again = Some((Instant::now() + settle, event.clone()));
        }
        if event.is_lost() {
            self.pending.lose();
        } else {
            self.pending.push(CallReason::Udev(event));
        }
    }

    fn datagram(&mut self, datagram: Arc<Datagram>) {
        if self.pending.is_over() {
            return;
        }
        let mut filters = self.wakes.multicast.iter();
        if let Some(spelled) = filters.find_map(|filter| filter.fits(&datagram)) {
            self.pending.push(CallReason::Multicast(spelled, datagram));
        }
    }

    /// What a call's end means for the next one.
    fn finish(&mut self, called: Called, told: Pending, since: EventBuffer) -> Report {
        let now = Instant::now();
        self.not_before = now + self.pace.end(now);
        self.phase = Phase::Waiting;
        let mut stats = called.stats;
        stats.events = told.events().iter().map(CallReason::label).collect();
        if told.lost() {
            stats.events.push("lost");
        }
        stats.events.dedup();
        match &called.outcome {
            Outcome::Discovered(_) => {
                let next = called.next.unwrap_or_default();
                self.failures = 0;
                self.wakes = Arc::new(next.wakes);
                // First, so that one of the same size has its place.
                self.cursor = None;
                match next.cursor.map(|bytes| self.cursors.keep(bytes)) {
                    None => {}
                    Some(Ok(cursor)) => self.cursor = Some(Arc::new(cursor)),
                    // The same devices come out without it.
                    Some(Err(why)) => stats.denied.push(why),
                }
                self.timer = self
                    .wakes
                    .after
                    .map(|after| now + after.clamp(WAKE_AFTER_MIN, WAKE_AFTER_MAX));
            }
            Outcome::InvalidDetails(_) => self.phase = Phase::Refused,
            Outcome::Unavailable(_) => {
                self.pending.tell_again(told);
                self.timer = Some(now + self.failed(Duration::ZERO));
            }
            Outcome::Faulted(_) => {
                self.pending.tell_again(told);
                self.not_before = now + self.failed(stats.cpu);
                self.timer = Some(self.not_before);
            }
        }
        self.handle(since.into_events());
        self.replace_lost_events(now);
        stats.next = match self.phase {
            Phase::Refused => None,
            _ => self.due_at().map(|at| at.duration_since(now)),
        };
        stats.wakes_refused.clone_from(&self.wakes.refused);
        let problems = self.subscriptions.problems(&self.wakes);
        stats.wakes_refused.extend(problems);
        if std::mem::take(&mut self.compared) >= COMPARING {
            stats.wakes_refused.push(format!(
                "udev: comparing events with the rules took {} ms, so further events woke uncompared; use fewer rules or simpler patterns",
                COMPARING.as_millis()
            ));
        }
        if matches!(self.phase, Phase::Refused) {
            // Nothing wakes it any more.
            self.subscriptions = Subscriptions::default();
        }
        Report {
            outcome: called.outcome,
            explained: called.explained,
            explained_dropped: called.explained_dropped,
            call: stats,
        }
    }

    /// Counts a failure; how long to wait after it.
    fn failed(&mut self, cpu: Duration) -> Duration {
        self.failures = self.failures.saturating_add(1);
        backoff::delay(self.failures, cpu)
    }
}

#[async_trait]
impl Session for WakingSession {
    async fn next(&mut self) -> Report {
        loop {
            match &mut self.phase {
                Phase::Refused => std::future::pending().await,
                Phase::Calling {
                    call,
                    late,
                    told,
                    since,
                } => {
                    tokio::select! {
                        biased;
                        mut called = call => {
                            called.stats.late += *late;
                            let (told, since) = (std::mem::take(told), std::mem::take(since));
                            return self.finish(called, told, since);
                        }
                        event = self.subscriptions.next() => since.push(event),
                    }
                }
                Phase::Waiting => {
                    self.begin_if_due();
                    if matches!(self.phase, Phase::Calling { .. }) {
                        continue;
                    }
                    let at = self.due_at();
                    let time = async {
                        match at {
                            Some(at) => tokio::time::sleep_until(at).await,
                            None => std::future::pending().await,
                        }
                    };
                    tokio::select! {
                        event = self.subscriptions.next() => self.handle(vec![event]),
                        () = time => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
