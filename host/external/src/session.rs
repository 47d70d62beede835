//! The port `Handler` of a registered handler, and its sessions: one stream of device sets at a time, opened again when it ends.
//!
//! A set is complete in itself. If sets arrive faster than they are taken, only the newest is used and the others are not decoded.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use futures::future::BoxFuture;
use futures::stream::BoxStream;
use futures::{FutureExt as _, StreamExt as _};
use leafhost_core::backoff;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::handler::HandlerFacts;
use leafhost_core::ports::Handler;
use leafhost_core::session::{CallStats, Outcome, Report, Session, SessionSpec};
use leafhost_core::text::chain;
use leafhost_core::timeouts::{BACKOFF_FIRST, WAKE_SPACING};
use leafhost_grants::Secrets;
use prost::Message as _;
use tokio::time::{Instant, sleep_until, timeout, timeout_at};
use tonic::transport::Channel;
use tonic::{Code, Status, Streaming};

use crate::answer::discovery;
use crate::endpoint::Error;
use crate::handler::{ExternalHandler, Target};
use crate::paced::paced;
use crate::proto::{ByteData, DiscoverRequest, DiscoverResponse};
use crate::registrations::SessionEvent;
use crate::timeouts::{CALM, FLOOD_SPACING};
use crate::wire::{channel, discover};

/// Maximum length of a status text that is shown, in bytes.
const MAX_TEXT: usize = 1024;
/// Number of sets in a row that count as a flood.
const FLOOD: u32 = 5;
/// Maximum number of pending sets to read at once, and the maximum time for this. A set that is larger than the stream's window arrives in parts, and
/// the handler waits between them.
const AT_ONCE: usize = 1000;
const DRAIN: Duration = Duration::from_millis(20);
/// Factor by which the pause after a set exceeds the time of its check: checks take at most a twentieth of a core.
const PER_CHECK: u32 = 20;

#[async_trait]
impl Handler for ExternalHandler {
    fn facts(&self) -> &HandlerFacts {
        &self.facts
    }

    async fn validate(&self, _details: &str) -> Result<Vec<FieldProblem>, Fault> {
        // Akri's handlers report invalid details only when they are asked for devices.
        Ok(Vec::new())
    }

    fn open(&self, spec: SessionSpec) -> Box<dyn Session> {
        let course = Course::new(Arc::new(self.clone()), spec);
        let reports = futures::stream::unfold(course, async |mut course| {
            let report = course.next().await;
            Some((report, course))
        });
        Box::new(ExternalSession(reports.boxed()))
    }
}

/// A session, as the stream of its reports.
struct ExternalSession(BoxStream<'static, Report>);

#[async_trait]
impl Session for ExternalSession {
    async fn next(&mut self) -> Report {
        match self.0.next().await {
            Some(report) => report,
            None => std::future::pending().await,
        }
    }
}

struct Course {
    handler: Arc<ExternalHandler>,
    spec: SessionSpec,
    secrets: Arc<Secrets>,
    phase: Phase,
    /// Number of attempts in a row without an answer.
    failures: u32,
}

enum Phase {
    /// Not connected; the next attempt is made at `.0`.
    Apart(Instant),
    /// Connected: the handler sends sets.
    Open(Box<Open>),
    /// The handler refused the details. A new session asks again once the handler registers again.
    Refused,
}

/// Sets of a stream. Some servers send the head of their answer only with the first set, so a call may stay pending for long.
enum Sets {
    Asked(BoxFuture<'static, Result<Streaming<Bytes>, Status>>),
    Begun(Box<Streaming<Bytes>>),
}

impl Sets {
    /// Returns the next set. Cancel safe.
    async fn next(&mut self) -> Result<Bytes, End> {
        if let Self::Asked(answer) = self {
            *self = Self::Begun(Box::new(answer.await.map_err(End::Status)?));
        }
        let set = match self {
            Self::Begun(sets) => sets.message().await.map_err(End::Status)?,
            Self::Asked(_) => None,
        };
        set.ok_or(End::Done)
    }
}

struct Open {
    sets: Sets,
    /// End of the stream, if it came right after the set that was taken last.
    ended: Option<End>,
    /// Deadline of the first set; `None` once the set has come or its absence was reported.
    first_by: Option<Instant>,
    begun: Instant,
    /// Earliest `Instant` at which the next set is taken.
    not_before: Instant,
    taken_at: Option<Instant>,
    in_a_row: u32,
    /// Present while the handler answers the call or may still answer in time.
    counted: Option<Counted>,
}

/// A stream that the registrations count for as long as this value exists.
struct Counted(Arc<ExternalHandler>);

impl Counted {
    fn new(handler: &Arc<ExternalHandler>) -> Self {
        handler.send_event(SessionEvent::StreamBegun);
        Self(Arc::clone(handler))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_event(SessionEvent::StreamEnded);
    }
}

impl Course {
    fn new(handler: Arc<ExternalHandler>, spec: SessionSpec) -> Self {
        handler.send_event(SessionEvent::Opened);
        Self {
            secrets: Arc::new(Secrets::new(&spec.properties)),
            handler,
            spec,
            phase: Phase::Apart(Instant::now()),
            failures: 0,
        }
    }

    /// Returns the report of the next set, or of the next attempt to get one.
    async fn next(&mut self) -> Report {
        loop {
            match &mut self.phase {
                Phase::Refused => std::future::pending().await,
                Phase::Apart(then) => {
                    sleep_until(*then).await;
                    let begun = Instant::now();
                    match self.open(begun).await {
                        Ok(open) => self.phase = Phase::Open(Box::new(open)),
                        Err(end) => return self.end(end, begun),
                    }
                }
                Phase::Open(open) => {
                    let (begun, first) = (open.begun, open.taken_at.is_none());
                    match open.next_set().await {
                        Ok(Some(set)) => return self.take(set).await,
                        Ok(None) if matches!(open.sets, Sets::Begun(_)) => return self.silent(),
                        Ok(None) => return self.unanswered(),
                        Err(end) => {
                            let begun = if first { begun } else { Instant::now() };
                            return self.end(end, begun);
                        }
                    }
                }
            }
        }
    }

    /// Connects to the handler and asks it for devices.
    async fn open(&mut self, begun: Instant) -> Result<Open, End> {
        let has_properties = !self.spec.properties.is_empty();
        let channel = connect(&self.handler.target, has_properties).await?;
        let properties = self.spec.properties.iter().map(|property| {
            let vec = property.value.as_deref().map(<[u8]>::to_vec);
            (property.name.clone(), ByteData { vec })
        });
        let request = DiscoverRequest {
            discovery_details: self.spec.details.clone(),
            discovery_properties: properties.collect(),
        };
        let first_by = begun + self.handler.grants.limits.wall;
        Ok(Open {
            sets: Sets::Asked(discover(channel, request).boxed()),
            ended: None,
            first_by: Some(first_by),
            begun,
            not_before: begun,
            taken_at: None,
            in_a_row: 0,
            counted: Some(Counted::new(&self.handler)),
        })
    }

    /// Decodes and checks a set. If its devices have paths, the check may hang.
    async fn take(&mut self, set: Bytes) -> Report {
        let begun = Instant::now();
        let (handler, secrets) = (Arc::clone(&self.handler), Arc::clone(&self.secrets));
        let checked = self.handler.target.quota.run(move || {
            let set = DiscoverResponse::decode(set)
                .map_err(|error| End::Lost(format!("the message of the handler is not a set of devices ({error}); the agent retries; make sure that the handler is built for this version of the protocol")))?;
            let shared = handler.facts.description.shared;
            discovery(set, &handler.grants, shared, &secrets).map_err(End::Fault)
        });
        let wall = self.handler.grants.limits.wall;
        let checked = match timeout(wall, checked).await {
            Ok(Ok(checked)) => checked,
            Ok(Err(why)) => Err(End::Fault(Fault::new(
                FaultReason::Host,
                format!("cannot check the set: {why}"),
            ))),
            Err(_) => Err(End::Fault(Fault::new(
                FaultReason::WallTimeout,
                format!(
                    "the devices could not be checked within {} s: a file system with a node or mount of the devices may hang; make sure that it answers, or grant no paths there",
                    wall.as_secs()
                ),
            ))),
        };
        let discovery = match checked {
            Ok(discovery) => discovery,
            Err(end) => return self.end(end, begun),
        };
        let now = Instant::now();
        self.failures = 0;
        self.handler.send_event(SessionEvent::Answered);
        let (mut why, mut wall) = ("set", now - begun);
        if let Phase::Open(open) = &mut self.phase {
            if open.taken_at.is_none() {
                (why, wall) = ("first", now - open.begun);
            }
            open.counted
                .get_or_insert_with(|| Counted::new(&self.handler));
            open.taken(now, begun);
        }
        report(Outcome::Discovered(discovery), why, wall)
    }

    /// Reports that the first set did not come in time. The stream stays open: earlier sets, or the Instances of another agent, stay valid.
    fn silent(&mut self) -> Report {
        let wall = self.handler.grants.limits.wall;
        let what = format!(
            "it has sent no set of devices within {} s, and the agent waits; a handler sends its devices as soon as it is asked, an empty set if there are none",
            wall.as_secs()
        );
        self.handler.send_event(SessionEvent::Answered);
        report(Outcome::Unavailable(what), "first", wall)
    }

    /// Reports that the handler has sent no answer and may hang. A later answer is still used, and the handler may register again.
    fn unanswered(&mut self) -> Report {
        if let Phase::Open(open) = &mut self.phase {
            open.counted = None;
        }
        let wall = self.handler.grants.limits.wall;
        let what = format!(
            "it has not begun to answer within {} s, and the agent waits; see the handler's log; a handler sends its devices as soon as it is asked, an empty set if there are none",
            wall.as_secs()
        );
        self.handler.send_event(SessionEvent::Failed);
        let fault = Fault::new(FaultReason::WallTimeout, what);
        report(Outcome::Faulted(fault), "first", wall)
    }

    /// Handles the end of a stream, or a failed attempt to open one.
    fn end(&mut self, end: End, begun: Instant) -> Report {
        let mut report = report(self.outcome(end), "connect", begun.elapsed());
        self.handler.send_event(match report.outcome {
            Outcome::Faulted(_) => SessionEvent::Failed,
            _ => SessionEvent::Answered,
        });
        if matches!(report.outcome, Outcome::InvalidDetails(_)) {
            self.phase = Phase::Refused;
        } else {
            self.failures = self.failures.saturating_add(1);
            let wait = backoff::wait(self.failures).max(BACKOFF_FIRST);
            self.phase = Phase::Apart(Instant::now() + wait);
            report.call.next = Some(wait);
        }
        report
    }

    fn outcome(&self, end: End) -> Outcome {
        let clean = |text: &str| self.secrets.clean(text, MAX_TEXT);
        let lost = |text: String| Outcome::Faulted(Fault::new(FaultReason::ConnectionLost, text));
        match end {
            End::Fault(fault) => Outcome::Faulted(fault),
            End::Lost(text) => lost(text),
            End::Done => lost(
                "the handler has ended the stream of its devices; it is asked again, see its log for the reason"
                    .to_owned(),
            ),
            End::Status(status) => match status.code() {
                // Akri's code for details that cannot be used.
                Code::InvalidArgument => {
                    Outcome::InvalidDetails(vec![FieldProblem::new("", clean(status.message()))])
                }
                // The decoder of this crate returned it.
                Code::OutOfRange => Outcome::Faulted(Fault::new(
                    FaultReason::AnswerTooLarge,
                    format!("{}; let the handler report fewer devices", clean(status.message())),
                )),
                // A status that the handler itself sent has no source error.
                code if std::error::Error::source(&status).is_none() && code != Code::Internal => {
                    Outcome::Unavailable(format!("{code:?}: {}", clean(status.message())))
                }
                _ => lost(format!(
                    "the connection to the handler was lost ({}); retrying",
                    clean(&chain(&status))
                )),
            },
        }
    }
}

/// Connects to the handler. A handler in the network gets properties only over the connection that was made when it registered.
async fn connect(target: &Target, has_properties: bool) -> Result<Channel, End> {
    if target.registered.endpoint.is_network() {
        match target.reach().await {
            Ok(channel) => return Ok(channel),
            Err(Error::NotTheFirst(_)) if !has_properties => {}
            Err(error) => return Err(End::Lost(error.to_string())),
        }
    }
    let connection = target.connect().await;
    let connection = connection.map_err(|error| End::Lost(error.to_string()))?;
    channel(paced(connection)).await.map_err(|error| {
        End::Lost(format!(
            "cannot communicate with the handler: {}",
            chain(&error)
        ))
    })
}

impl Drop for Course {
    fn drop(&mut self) {
        // The stream is dropped first.
        self.phase = Phase::Refused;
        self.handler.send_event(SessionEvent::Closed);
    }
}

impl Open {
    /// Returns the newest set, or `None` if the first set does not arrive in time.
    async fn next_set(&mut self) -> Result<Option<Bytes>, End> {
        if let Some(end) = self.ended.take() {
            return Err(end);
        }
        sleep_until(self.not_before).await;
        let first = match self.first_by.take() {
            None => self.sets.next().await,
            Some(by) => match timeout_at(by, self.sets.next()).await {
                Ok(first) => first,
                Err(_) => return Ok(None),
            },
        };
        let mut newest = first?;
        let by = Instant::now() + DRAIN;
        for _ in 0..AT_ONCE {
            match timeout_at(by, self.sets.next()).await {
                Err(_) => break,
                Ok(Ok(set)) => newest = set,
                Ok(Err(end)) => {
                    self.ended = Some(end);
                    break;
                }
            }
        }
        Ok(Some(newest))
    }

    /// Records that a set was taken, and computes the pause from the start of its check.
    fn taken(&mut self, now: Instant, begun: Instant) {
        let is_calm = self.taken_at.is_none_or(|before| now - before >= CALM);
        self.in_a_row = if is_calm {
            0
        } else {
            self.in_a_row.saturating_add(1)
        };
        self.taken_at = Some(now);
        let spacing = if self.in_a_row < FLOOD {
            WAKE_SPACING
        } else {
            FLOOD_SPACING
        };
        self.not_before = now + spacing.max((now - begun) * PER_CHECK);
    }
}

/// Reason why there is no set.
enum End {
    /// No connection could be made or kept.
    Lost(String),
    Done,
    /// The handler or the connection ended the stream with this status.
    Status(Status),
    /// The set cannot be used.
    Fault(Fault),
}

fn report(outcome: Outcome, why: &'static str, wall: Duration) -> Report {
    let call = CallStats {
        events: vec![why],
        wall,
        ..CallStats::default()
    };
    Report::new(outcome, call)
}
