//! A session: calls a handler again each time one of its wakes occurs.
//!
//! Does not know the guest: [`Caller`] makes the calls, so the timing rules are tested without a guest.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::session::{Opening, Outcome, Report, Session};
use leafhost_core::timeouts::{WAKE_AFTER_MAX, WAKE_AFTER_MIN};
use leafhost_core::wait::until;
use leafhost_net::{Datagram, Received};
use leafhost_udev::Event;
use tokio::time::Instant;

use crate::cpu::thread_time;
use crate::cursor::{Cursor, Cursors};
use crate::timeouts::{COMPARING, INSTEAD_OF_EVENTS};

mod pace;
mod subscriptions;
mod wakes;

use pace::Pace;
use subscriptions::SessionEvent;
pub(crate) use subscriptions::{DeviceSubscription, NetworkSubscription, Subscriptions};
use wakes::Pending;
pub(crate) use wakes::{Filter, WakeConditions};

#[async_trait]
pub(crate) trait Caller: Send + Sync + 'static {
    /// Calls the handler. Dropping the future ends the call.
    async fn call(self: Arc<Self>, ask: CallInput) -> CallResult;
}

/// Input of a call that differs between the calls of a session.
#[derive(Debug, Default, Clone)]
pub(crate) struct CallInput {
    pub(crate) events: Vec<CallReason>,
    /// True if more events came than are kept.
    pub(crate) events_lost: bool,
    /// Cursor of the last answer.
    pub(crate) cursor: Option<Arc<Cursor>>,
}

/// Reason for a call. Its text is the name of the variant in lower case, as in `status`.
#[derive(Debug, Clone, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "lowercase")]
pub(crate) enum CallReason {
    /// The session is new.
    First,
    /// Details, properties or grants changed.
    Changed,
    Timer,
    Udev(Arc<Event>),
    /// The granted interfaces changed.
    Network,
    /// A datagram, with the group as the wake spells it.
    Multicast(Arc<str>, Arc<Datagram>),
}

#[derive(Debug, Clone)]
pub(crate) struct CallResult {
    /// Report of the call; the session fills in the reasons and the next call.
    pub(crate) report: Report,
    /// Data for the next call, from an answer with devices.
    pub(crate) next: Option<NextCall>,
}

/// Data that an answer leaves for the next call.
#[derive(Debug, Clone, Default)]
pub(crate) struct NextCall {
    pub(crate) wakes: WakeConditions,
    pub(crate) cursor: Option<Vec<u8>>,
}

/// A session that calls its handler.
pub(crate) struct WakingSession {
    caller: Arc<dyn Caller>,
    subscriptions: Subscriptions,
    phase: Phase,
    /// Wakes of the last answer: in effect until the next answer, even after failed calls.
    wakes: Arc<WakeConditions>,
    /// CPU time spent on comparing device events since the last report.
    compared: Duration,
    cursor: Option<Arc<Cursor>>,
    /// Counter that the cursor is part of.
    cursors: Arc<Cursors>,
    pending: Pending,
    /// `Instant` of the next call if no wake comes first.
    timer: Option<Instant>,
    /// `Instant` at which the handler gets an event a second time, because the effect of the event may appear later than the event.
    again: Option<(Instant, Arc<Event>)>,
    pace: Pace,
    /// Earliest `Instant` of the next call.
    not_before: Instant,
    /// Number of calls in a row without an answer with devices.
    failures: u32,
}

enum Phase {
    /// A call runs. Keeps the events that the call got, to repeat them after a failure. The subscriptions keep the events since it began,
    /// because the answer decides which of them matter.
    Calling {
        call: Pin<Box<dyn Future<Output = CallResult> + Send>>,
        /// Delay between the due time of the call and its request.
        late: Duration,
        delivered: Pending,
    },
    Waiting,
    /// The details are invalid: only a new session calls again.
    Refused,
}

impl WakingSession {
    /// Creates a session that has not called yet.
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

    /// Moves due timers and events to `pending`, and begins a call if `pending` has a reason and `not_before` has passed.
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
        let delivered = std::mem::take(&mut self.pending);
        let ask = CallInput {
            events: delivered.events().to_vec(),
            events_lost: delivered.lost(),
            // The session keeps the cursor, too: a failed call leaves it unchanged.
            cursor: self.cursor.clone(),
        };
        let caller = self.caller.clone();
        self.phase = Phase::Calling {
            call: caller.call(ask),
            late,
            delivered,
        };
    }

    /// Sets the timer to at most [`INSTEAD_OF_EVENTS`] from `now` if the handler waits for device events and their monitor has ended.
    fn replace_lost_events(&mut self, now: Instant) {
        let ended = self.subscriptions.devices.is_none() && !self.wakes.udev.is_empty();
        if ended && self.failures == 0 {
            let instead = now + INSTEAD_OF_EVENTS;
            self.timer = Some(self.timer.map_or(instead, |at| at.min(instead)));
        }
    }

    /// Returns the `Instant` of the next call if no event comes.
    fn due_at(&self) -> Option<Instant> {
        let due = if self.pending.is_reason() {
            Some(self.not_before)
        } else {
            let again = self.again.as_ref().map(|(at, _)| *at);
            self.timer.into_iter().chain(again).min()
        };
        due.map(|at| at.max(self.not_before))
    }

    /// Handles an event that came while no call ran, or during the last one.
    fn handle(&mut self, event: SessionEvent) {
        match event {
            SessionEvent::Device(event) => self.device(event),
            SessionEvent::Network if self.wakes.network => {
                self.pending.push(CallReason::Network);
            }
            SessionEvent::Group(Received::Datagram(datagram)) => self.datagram(datagram),
            SessionEvent::Group(Received::Lost) if !self.wakes.multicast.is_empty() => {
                self.pending.lose();
            }
            SessionEvent::Network | SessionEvent::Group(Received::Lost) => {}
        }
    }

    fn device(&mut self, event: Arc<Event>) {
        let Some(devices) = &self.subscriptions.devices else {
            return;
        };
        let mut rules = self.wakes.udev.iter();
        // After more events than a call gets, the next call reads all devices anyway, so further events are not compared.
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

    /// Updates the session from the result of a call; returns the report.
    fn finish(&mut self, called: CallResult, delivered: Pending) -> Report {
        let now = Instant::now();
        self.not_before = now + self.pace.end(now);
        self.phase = Phase::Waiting;
        let CallResult { mut report, next } = called;
        let stats = &mut report.call;
        stats.events = delivered.events().iter().map(Into::into).collect();
        if delivered.lost() {
            stats.events.push("lost");
        }
        stats.events.dedup();
        match &report.outcome {
            Outcome::Discovered(_) => {
                let next = next.unwrap_or_default();
                self.failures = 0;
                self.wakes = Arc::new(next.wakes);
                // Released first, so that a cursor of the same size has room.
                self.cursor = None;
                match next.cursor.map(|bytes| self.cursors.keep(bytes)) {
                    None => {}
                    Some(Ok(cursor)) => self.cursor = Some(Arc::new(cursor)),
                    // The handler finds the same devices without the cursor.
                    Some(Err(why)) => stats.denied.push(why),
                }
                self.timer = self
                    .wakes
                    .after
                    .map(|after| now + after.clamp(WAKE_AFTER_MIN, WAKE_AFTER_MAX));
            }
            Outcome::InvalidDetails(_) => self.phase = Phase::Refused,
            Outcome::Unavailable(_) => {
                self.pending.requeue(delivered);
                self.timer = Some(now + self.failed(Duration::ZERO));
            }
            Outcome::Faulted(_) => {
                self.pending.requeue(delivered);
                self.not_before = now + self.failed(stats.cpu);
                self.timer = Some(self.not_before);
            }
        }
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
            // No event wakes the session after this.
            self.subscriptions = Subscriptions::default();
        }
        report
    }

    /// Counts a failure; returns the pause after it.
    fn failed(&mut self, cpu: Duration) -> Duration {
        self.failures = self.failures.saturating_add(1);
        pace::after_failure(self.failures, cpu)
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
                    delivered,
                } => {
                    let mut called = call.await;
                    called.report.call.late += *late;
                    let delivered = std::mem::take(delivered);
                    return self.finish(called, delivered);
                }
                Phase::Waiting => {
                    self.begin_if_due();
                    if matches!(self.phase, Phase::Calling { .. }) {
                        continue;
                    }
                    let at = self.due_at();
                    tokio::select! {
                        event = self.subscriptions.next() => self.handle(event),
                        () = until(at) => {}
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests;
