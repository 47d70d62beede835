//! Does what is to be done with cameras, many at once and none for long.

use std::time::Duration;

use super::{FRESH, Pass};
use crate::discover::camera::{self, Asked, Asker, Silence};
use crate::discover::cursor::{Camera, Claim, Cursor, Moment};
use crate::discover::gather::Candidate;
use crate::discover::now;
use crate::xaddr::{Host, XAddr};

/// How many cameras are asked at once.
const AT_ONCE: usize = 64;
/// How long all the asking may take, so that what happens meanwhile is not kept waiting for long.
const ASKING: Duration = Duration::from_secs(10);
/// How long a camera that is known has for its greeting.
const GREETING: Duration = Duration::from_secs(1);
/// How long after the first the second greeting comes of a camera that is known: what was sent may have been lost.
const SECOND_TRY: Duration = Duration::from_secs(1);
/// How often a camera that greets is tried: many greet before they can answer.
const TRIES: u32 = 3;
/// How long after the first try the last one begins.
const TRYING: Duration = Duration::from_millis(1_500);
/// How long after the first the second greeting comes of a camera that is said to have gone.
const SECOND_LOOK: Duration = Duration::from_millis(250);

/// Something to do with a camera.
pub(super) enum Work {
    /// See whether a known one is there.
    Greet(XAddr),
    /// See whether the service answers of a known one that is there.
    Check(XAddr),
    /// Ask everything.
    Ask(Candidate),
    /// See whether a known one has gone, as somebody says.
    Doubt(XAddr, Duration),
    /// See it once more: many say that they go before they have stopped to answer.
    DoubtAgain(XAddr, Duration),
}

/// What came of it.
pub(super) enum Outcome {
    NoTime,
    Later,
    Here(XAddr, Duration),
    Stays(XAddr),
    Silent(XAddr, Silence),
    Fails(XAddr, Silence),
    Asked(Vec<(Candidate, Asked)>),
    Gone(XAddr),
}

impl Pass<'_> {
    pub(super) async fn perform(&mut self, works: Vec<Work>, is_patient: bool) {
        let this = &*self;
        let host = this.asker.host;
        let ends = host.elapsed().saturating_add(ASKING);
        let works = works.into_iter().map(|work| async move {
            let left = host.time_left().min(ends.saturating_sub(host.elapsed()));
            if left < Duration::from_millis(500) {
                return match work {
                    Work::Check(_) => Outcome::Later,
                    _ => Outcome::NoTime,
                };
            }
            this.work(work, left, is_patient).await
        });
        let outcomes = host.all(AT_ONCE, works).await;
        let now = now(host);
        for outcome in outcomes {
            self.take(outcome, now, is_patient);
        }
    }

    async fn work(&self, work: Work, left: Duration, is_patient: bool) -> Outcome {
        match work {
            Work::Greet(xaddr) => match self.greet(&xaddr, left, false).await {
                Ok(took) => Outcome::Here(xaddr, took),
                Err(silence) => Outcome::Silent(xaddr, silence),
            },
            Work::Check(xaddr) => match self.greet(&xaddr, left, true).await {
                Ok(took) => Outcome::Here(xaddr, took),
                Err(silence) => Outcome::Fails(xaddr, silence),
            },
            Work::Ask(candidate) => self.ask(candidate, left, is_patient).await,
            Work::Doubt(xaddr, limit) => match self.shows_itself(&xaddr, limit.min(left)).await {
                Some(_) => Outcome::Stays(xaddr),
                None => Outcome::Gone(xaddr),
            },
            Work::DoubtAgain(xaddr, limit) => {
                match self.shows_itself(&xaddr, limit.min(left)).await {
                    Some(took) => Outcome::Here(xaddr, took),
                    None => Outcome::Gone(xaddr),
                }
            }
        }
    }

    /// Greets a camera that is known, and once more where nobody answers. A refusal shows that it is there if it announced
    /// itself or has refused that before: another host that has its address now may refuse everything, too.
    async fn greet(
        &self,
        xaddr: &XAddr,
        left: Duration,
        is_announced: bool,
    ) -> Result<Duration, Silence> {
        let Asker { host, .. } = self.asker;
        let began = host.elapsed();
        let passed = || host.elapsed().saturating_sub(began);
        let camera = self.cursor.cameras.get(&xaddr.url);
        let limit = camera.map_or(GREETING, patience).max(GREETING);
        let mut answer = self.asker.greet(xaddr, limit.min(left)).await;
        let has_time = left.saturating_sub(passed()) > SECOND_TRY + limit;
        if has_time && answer.as_ref().is_err_and(Silence::is_proof) {
            host.sleep(SECOND_TRY).await;
            answer = self.asker.greet(xaddr, limit).await;
        }
        let may_refuse = is_announced || camera.is_some_and(|camera| camera.hides_time);
        match answer {
            Err(silence) if may_refuse && silence.is_refusal() => Ok(passed()),
            answer => answer,
        }
    }

    /// Looks twice whether a camera is there; how long the look took that found anything but its absence.
    async fn shows_itself(&self, xaddr: &XAddr, limit: Duration) -> Option<Duration> {
        let host = self.asker.host;
        let began = host.elapsed();
        for _ in 0..2 {
            let answer = self.asker.greet(xaddr, limit).await;
            let passed = host.elapsed().saturating_sub(began);
            match answer {
                Err(silence) if silence.is_proof() => {}
                Ok(took) => return Some(took),
                Err(_) => return Some(passed),
            }
            host.sleep(SECOND_LOOK.saturating_sub(passed)).await;
        }
        None
    }

    /// Asks a camera at its address; where that cannot be used, at the one that its announcement came from.
    async fn ask(&self, mut candidate: Candidate, left: Duration, is_patient: bool) -> Outcome {
        let Asker { host, .. } = self.asker;
        let began = host.elapsed();
        let left = || left.saturating_sub(host.elapsed().saturating_sub(began));
        let instead = candidate.instead.take();
        let mut tries = 1;
        loop {
            let first = self.ask_at(&candidate, left()).await;
            let is_unusable = first.told.is_err();
            let mut all = vec![first];
            if let (Some(instead), true) = (&instead, is_unusable) {
                all.push(self.ask_at(instead, left()).await);
            }
            let is_over = all.iter().any(|one| one.told.is_ok() || one.is_refused);
            let pause = if is_over {
                None
            } else if is_patient {
                let passed = host.elapsed().saturating_sub(began);
                (tries < TRIES && passed < TRYING).then_some(TRYING / TRIES)
            } else {
                let has_time = tries == 1 && left() > SECOND_TRY + GREETING;
                (has_time && self.has_second_chance(&candidate, &all)).then_some(SECOND_TRY)
            };
            let Some(pause) = pause else {
                let asked = [Some(candidate), instead.map(|instead| *instead)];
                return Outcome::Asked(asked.into_iter().flatten().zip(all).collect());
            };
            tries += 1;
            host.sleep(pause).await;
        }
    }

    /// Whether a camera is asked once more in this call: what was sent may have been lost. All that are known are, and a
    /// few of those that are not.
    fn has_second_chance(&self, candidate: &Candidate, asked: &[Asked]) -> bool {
        let Cursor {
            cameras, failed, ..
        } = &self.cursor;
        let is_loss = |one: &Asked| one.told.as_ref().is_err_and(Silence::is_loss);
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
        let may_tell = self.may_tell(candidate, now(self.asker.host));
        let Candidate { xaddr, uuid, .. } = candidate;
        let limit = camera::LIMIT.min(left);
        self.asker.ask(xaddr, uuid, may_tell, limit).await
    }

    /// Whether a camera may see a digest of a password: if it announced itself from there, or the operator named the place,
    /// and has not refused them of late, since wrong passwords lock accounts.
    fn may_tell(&self, candidate: &Candidate, now: Moment) -> Result<(), &'static str> {
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

    /// When credentials were refused at an address, if they are not to be tried there yet.
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

/// How long the answer of a camera is waited for that may have gone: one that is known to be slow is given its time.
pub(super) fn patience(camera: &Camera) -> Duration {
    Duration::from_millis(camera.took.saturating_mul(2).clamp(750, 4_000))
}
