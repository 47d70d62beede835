//! Runs the tasks of a scan concurrently, within a time limit.

use std::time::Duration;

use leafhost_sdk::net::CONNECTIONS;

use super::{FRESH, Scan};
use crate::details::Channels;
use crate::discover::camera::{self, AskError, Asked, Asker, Streams};
use crate::discover::candidates::Candidate;
use crate::discover::cursor::{Camera, Claim, Cursor, Moment};
use crate::discover::now;
use crate::xaddr::{Host, XAddr};

/// Maximum number of cameras that are asked concurrently.
const AT_ONCE: usize = 64;
/// Time limit for all tasks of a call, so that events wait no longer.
const ASKING: Duration = Duration::from_secs(10);
/// Minimum time limit for a ping of a known camera.
const PING_TIMEOUT: Duration = Duration::from_secs(1);
/// Pause before the second ping of a known camera: the first may have been lost.
const SECOND_TRY: Duration = Duration::from_secs(1);
/// Number of tries for a camera that sent Hello: many send Hello before they can answer.
const TRIES: u32 = 3;
/// Maximum time between the first and the last try.
const TRYING: Duration = Duration::from_millis(1_500);
/// Pause before the second ping of a camera for which a Bye came.
const SECOND_CHECK: Duration = Duration::from_millis(250);

/// Time limit for the streams of one camera.
const STREAMS: Duration = Duration::from_secs(5);
/// Maximum number of cameras that one call asks for their streams.
const MAX_STREAMS: usize = 64;
/// Number of connections reserved for each task of a call, and for the streams of a camera.
const CONNECTIONS_EACH: (usize, usize) = (8, 20);
/// Number of connections reserved for the streams of a camera whose channels are devices.
const CONNECTIONS_CHANNELS: usize = 80;

/// Task for one camera.
pub(super) enum Task {
    /// Ping a known camera that did not announce itself.
    Ping(XAddr),
    /// Check the service of a known camera that announced itself.
    Check(XAddr),
    /// Ask for all data.
    Ask(Candidate),
    /// Check whether a camera for which a Bye came is gone.
    CheckBye(XAddr, Duration),
    /// Check again whether it is gone: many cameras send Bye before they stop answering.
    CheckByeAgain(XAddr, Duration),
}

/// Outcome of a [`Task`].
pub(super) enum Outcome {
    NoTime,
    Later,
    Here(XAddr, Duration),
    Stays(XAddr),
    Silent(XAddr, AskError),
    Fails(XAddr, AskError),
    Asked(Vec<(Candidate, Asked)>),
    Gone(XAddr),
}

impl Scan<'_> {
    pub(super) async fn run_tasks(&mut self, tasks: Vec<Task>, may_be_starting: bool) {
        let (of_task, of_streams) = CONNECTIONS_EACH;
        let of_streams = match self.details.channels {
            Channels::One => of_streams,
            Channels::Devices => CONNECTIONS_CHANNELS,
        };
        let spare = CONNECTIONS.saturating_sub(tasks.len() * of_task);
        self.streams_left.set(MAX_STREAMS.min(spare / of_streams));
        let this = &*self;
        let host = this.asker.host;
        let ends = host.elapsed().saturating_add(ASKING);
        let tasks = tasks.into_iter().map(|task| async move {
            let left = host.time_left().min(ends.saturating_sub(host.elapsed()));
            if left < Duration::from_millis(500) {
                return match task {
                    Task::Check(_) => Outcome::Later,
                    _ => Outcome::NoTime,
                };
            }
            this.run_task(task, left, may_be_starting).await
        });
        let outcomes = host.all(AT_ONCE, tasks).await;
        let now = now(host);
        for outcome in outcomes {
            self.apply(outcome, now, may_be_starting);
        }
    }

    async fn run_task(&self, task: Task, left: Duration, may_be_starting: bool) -> Outcome {
        match task {
            Task::Ping(xaddr) => match self.ping(&xaddr, left, false).await {
                Ok(took) => Outcome::Here(xaddr, took),
                Err(error) => Outcome::Silent(xaddr, error),
            },
            Task::Check(xaddr) => match self.ping(&xaddr, left, true).await {
                Ok(took) => Outcome::Here(xaddr, took),
                Err(error) => Outcome::Fails(xaddr, error),
            },
            Task::Ask(candidate) => self.ask(candidate, left, may_be_starting).await,
            Task::CheckBye(xaddr, limit) => {
                match self.shows_itself(&xaddr, limit.min(left)).await {
                    Some(_) => Outcome::Stays(xaddr),
                    None => Outcome::Gone(xaddr),
                }
            }
            Task::CheckByeAgain(xaddr, limit) => {
                match self.shows_itself(&xaddr, limit.min(left)).await {
                    Some(took) => Outcome::Here(xaddr, took),
                    None => Outcome::Gone(xaddr),
                }
            }
        }
    }

    /// Pings a known camera, a second time if the first attempt shows its absence and there is time. A refusal counts as an
    /// answer only if the camera announced itself or refused before: another host may have the address now and refuse
    /// everything.
    async fn ping(
        &self,
        xaddr: &XAddr,
        left: Duration,
        is_announced: bool,
    ) -> Result<Duration, AskError> {
        let Asker { host, .. } = self.asker;
        let began = host.elapsed();
        let passed = || host.elapsed().saturating_sub(began);
        let camera = self.cursor.cameras.get(&xaddr.url);
        let limit = camera
            .map_or(PING_TIMEOUT, answer_timeout)
            .max(PING_TIMEOUT);
        let mut answer = self.asker.ping(xaddr, limit.min(left)).await;
        let has_time = left.saturating_sub(passed()) > SECOND_TRY + limit;
        if has_time && answer.as_ref().is_err_and(AskError::shows_absence) {
            host.sleep(SECOND_TRY).await;
            answer = self.asker.ping(xaddr, limit).await;
        }
        let may_refuse = is_announced || camera.is_some_and(|camera| camera.hides_time);
        match answer {
            Err(error) if may_refuse && error.is_refusal() => Ok(passed()),
            answer => answer,
        }
    }

    /// Pings a camera, a second time if the first shows its absence. Returns the time until a response that does not show
    /// its absence; `None` if there is no such response.
    async fn shows_itself(&self, xaddr: &XAddr, limit: Duration) -> Option<Duration> {
        let host = self.asker.host;
        let began = host.elapsed();
        for _ in 0..2 {
            let answer = self.asker.ping(xaddr, limit).await;
            let passed = host.elapsed().saturating_sub(began);
            match answer {
                Err(error) if error.shows_absence() => {}
                Ok(took) => return Some(took),
                Err(_) => return Some(passed),
            }
            host.sleep(SECOND_CHECK.saturating_sub(passed)).await;
        }
        None
    }

    /// Asks a camera at its address and, if that fails, at its alternative.
    async fn ask(
        &self,
        mut candidate: Candidate,
        left: Duration,
        may_be_starting: bool,
    ) -> Outcome {
        let Asker { host, .. } = self.asker;
        let began = host.elapsed();
        let left = || left.saturating_sub(host.elapsed().saturating_sub(began));
        let alternative = candidate.alternative.take();
        let mut tries = 1;
        loop {
            let first = self.ask_at(&candidate, left()).await;
            let is_unusable = first.reply.is_err();
            let mut all = vec![first];
            if let (Some(alternative), true) = (&alternative, is_unusable) {
                all.push(self.ask_at(alternative, left()).await);
            }
            let is_over = all.iter().any(|one| one.reply.is_ok() || one.is_refused);
            let pause = if is_over {
                None
            } else if may_be_starting {
                let passed = host.elapsed().saturating_sub(began);
                (tries < TRIES && passed < TRYING).then_some(TRYING / TRIES)
            } else {
                let has_time = tries == 1 && left() > SECOND_TRY + PING_TIMEOUT;
                (has_time && self.has_second_chance(&candidate, &all)).then_some(SECOND_TRY)
            };
            let Some(pause) = pause else {
                let asked = [Some(candidate), alternative.map(|alternative| *alternative)];
                return Outcome::Asked(asked.into_iter().flatten().zip(all).collect());
            };
            tries += 1;
            host.sleep(pause).await;
        }
    }

    /// Returns true if a camera should be asked again in this call because a packet may have been lost: always for known
    /// cameras, for a few of the new ones.
    fn has_second_chance(&self, candidate: &Candidate, asked: &[Asked]) -> bool {
        let Cursor {
            cameras, failed, ..
        } = &self.cursor;
        let is_loss = |one: &Asked| one.reply.as_ref().is_err_and(AskError::is_loss);
        let url = &candidate.xaddr.url;
        if !asked.iter().any(is_loss) || failed.get(url).is_some_and(|before| before.times > 2) {
            return false;
        }
        let chances = self.second_chances.get();
        if cameras.get(url).is_none() {
            self.second_chances.set(chances.saturating_sub(1));
        }
        cameras.get(url).is_some() || chances > 0
    }

    async fn ask_at(&self, candidate: &Candidate, left: Duration) -> Asked {
        let may_authenticate = self.may_authenticate(candidate, now(self.asker.host));
        let Candidate { xaddr, uuid, .. } = candidate;
        let limit = camera::LIMIT.min(left);
        let chances = self.streams_left.get();
        let channels = self.details.channels;
        let streams = match chances {
            _ if !self.details.streams && channels == Channels::One => Streams::No,
            0 => Streams::Later,
            _ => Streams::Within(STREAMS.min(left.saturating_sub(limit)), channels),
        };
        self.streams_left.set(chances.saturating_sub(1));
        let asker = &self.asker;
        let answer = asker
            .ask(xaddr, uuid, may_authenticate, limit, streams)
            .await;
        if answer.reply.is_err() && chances > 0 {
            self.streams_left.set(self.streams_left.get() + 1);
        }
        answer
    }

    /// Checks whether a camera may be sent a password digest. It must have announced itself from its address, or the
    /// operator must have named the address; and it must not have refused the credentials lately, since wrong passwords lock
    /// accounts.
    fn may_authenticate(&self, candidate: &Candidate, now: Moment) -> Result<(), &'static str> {
        if self.refused(&candidate.xaddr.url, now).is_some() {
            return Err("it refused those given; they are tried again after a quarter of an hour");
        }
        let is_named = matches!(&candidate.xaddr.host, Host::Ip(ip) if self.details.names(*ip));
        match candidate.claim {
            _ if is_named => Ok(()),
            Claim::Own => Ok(()),
            Claim::Contested => Err(
                "they are withheld: another host says that it is the same camera; name the right one in ipAddresses",
            ),
            Claim::Foreign => Err(
                "they are withheld: the address is not the one the announcement came from; name it in ipAddresses",
            ),
        }
    }

    /// Returns the time at which credentials were refused at an address, if it is too early to try them again.
    pub(super) fn refused(&self, url: &str, now: Moment) -> Option<Moment> {
        let Cursor {
            cameras, failed, ..
        } = &self.cursor;
        let camera = cameras.get(url).map(|camera| camera.refused);
        let refused = camera.or_else(|| failed.get(url).map(|failed| failed.refused));
        refused.filter(|refused| {
            *refused != 0 && !self.asks_again && now.saturating_sub(*refused) < FRESH
        })
    }
}

/// Returns the time limit for the answer of a camera that may be gone: twice the duration of its last answer, between 750 ms
/// and 4 s.
pub(super) fn answer_timeout(camera: &Camera) -> Duration {
    Duration::from_millis(camera.took.saturating_mul(2).clamp(750, 4_000))
}
