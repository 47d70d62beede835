//! One look at cameras: whom to ask in which order, and what follows from the answers.

mod answer;

use std::net::IpAddr;
use std::time::Duration;

use super::now;
use crate::details::{Details, XAddrs};
use crate::discover::camera::{self, Asker, Silence, Told};
use crate::discover::cursor::{Camera, Claim, Cursor, Failed, Moment};
use crate::discover::devices;
use crate::discover::gather::{Candidate, Heard, gather};
use crate::xaddr::XAddr;

/// How many cameras are asked at once.
const AT_ONCE: usize = 64;
/// How long all the asking may take, so that what happens meanwhile is not kept waiting for long.
const ASKING: Duration = Duration::from_secs(10);
/// How long a camera that is known has for its greeting.
const GREETING: Duration = Duration::from_secs(1);
/// How many milliseconds what a camera told is good.
const FRESH: Moment = 15 * 60_000;
/// The same where it did not get to tell all.
const CUT_SHORT: Moment = 30_000;
/// How many cameras are asked anew in one call because what they told has become old.
const MAX_STALE: usize = 16;
/// How long after it was asked a camera that greets is asked again.
const CALM: Moment = 5_000;
/// The same for one that did not answer: it may have been starting.
const CALM_FAILED: Moment = 1_000;
/// How often a camera that greets is tried: many greet before they can answer.
const TRIES: u32 = 3;
/// How long after the first try the last one begins.
const TRYING: Duration = Duration::from_millis(1_500);
/// How long after the first the second greeting comes of a camera that is said to have gone.
const SECOND_LOOK: Duration = Duration::from_millis(250);
/// How many scopes of a camera are remembered.
const MAX_SCOPES: usize = 64;
/// How long a farewell that was not found true is remembered: a camera that is silent meanwhile is looked at twice.
const DOUBT: Moment = 60_000;
/// How often a known camera may be silent before it is forgotten.
const MAX_MISSES: u64 = 8;

/// One look.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    pub details: &'a Details,
    pub asker: Asker<'a>,
    /// How many devices an answer may have.
    pub most: usize,
    pub cursor: Cursor,
    /// Whether known cameras are asked anew, since credentials may have changed.
    pub asks_again: bool,
    /// Whether there was no time for all.
    pub is_cut_short: bool,
    /// Whether a camera that is said to go is there still.
    pub is_in_doubt: bool,
    /// Ids of the cameras that were found to have gone.
    pub departed: Vec<String>,
}

/// Something to do with a camera.
enum Work {
    /// See whether a known one is there.
    Greet(XAddr),
    /// Ask everything.
    Ask(Candidate),
    /// See whether a known one has gone, as somebody says.
    Doubt(XAddr, Duration),
    /// See it once more: many say that they go before they have stopped to answer.
    DoubtAgain(XAddr, Duration),
}

/// What came of it.
enum Outcome {
    NoTime,
    Here(XAddr, Duration),
    Stays(XAddr),
    Silent(XAddr, Silence),
    Told(Candidate, Told),
    Untold(Candidate, Silence),
    Gone(XAddr),
}

impl Pass<'_> {
    /// Looks at all cameras that were heard and all that are known.
    pub(super) async fn look_at_everything(&mut self, heard: &[Heard], byes: &[String]) {
        let gathered = gather(self.details, &self.cursor, heard);
        for left_out in &gathered.left_out {
            self.asker
                .host
                .skipped(&left_out.subject, left_out.rule, &left_out.reason);
        }
        let mut announced: Vec<String> = gathered
            .candidates
            .iter()
            .map(|one| one.xaddr.url.clone())
            .collect();
        announced.sort_unstable();
        self.forget_dropped(&announced, &gathered.dropped);
        let now = now(self.asker.host);
        let mut works = self.doubts(byes, now);
        let (here, lost) = self.greetings(&announced, byes, now);
        works.extend(here);
        works.extend(self.questions(gathered.candidates, now));
        works.extend(lost);
        self.perform(works, false).await;
        self.settle(&announced);
    }

    /// Looks at the cameras that have come or, as somebody says, gone.
    pub(super) async fn look_at(&mut self, hellos: &[Heard], byes: &[String]) {
        let gathered = gather(self.details, &self.cursor, hellos);
        for left_out in &gathered.left_out {
            self.asker
                .host
                .skipped(&left_out.subject, left_out.rule, &left_out.reason);
        }
        let now = now(self.asker.host);
        let mut works = self.doubts(byes, now);
        for candidate in gathered.candidates {
            let url = &candidate.xaddr.url;
            let known = self.cursor.cameras.get(url);
            // Whether a known camera is another one now is seen when all are heard.
            if known.is_some_and(|camera| {
                camera.uuid != candidate.uuid || !may_describe(&candidate, camera)
            }) {
                continue;
            }
            let calm_until = match (self.cursor.cameras.get(url), self.cursor.failed.get(url)) {
                (Some(camera), _) => camera.asked.saturating_add(CALM),
                (None, Some(failed)) => failed.asked.saturating_add(CALM_FAILED),
                (None, None) => 0,
            };
            if now >= calm_until {
                works.push(Work::Ask(candidate));
            }
        }
        self.perform(works, true).await;
    }

    /// Forgets cameras that now say of themselves what a filter drops.
    fn forget_dropped(&mut self, announced: &[String], dropped: &[(String, IpAddr)]) {
        self.cursor.cameras.retain(|url, camera| {
            let is_dropped = |(uuid, source): &(String, IpAddr)| {
                *uuid == camera.uuid && XAddr::new(url).is_ok_and(|xaddr| xaddr.is_at(*source))
            };
            is_among(announced, url) || !dropped.iter().any(is_dropped)
        });
    }

    /// Known cameras that did not announce themselves this time: datagrams get lost.
    /// Those that were here, and those that were not.
    fn greetings(
        &self,
        announced: &[String],
        byes: &[String],
        now: Moment,
    ) -> (Vec<Work>, Vec<Work>) {
        let silent = self.cursor.cameras.iter().filter(|(url, camera)| {
            !is_among(announced, url)
                && !byes.contains(&camera.uuid)
                && is_due(camera.misses, camera.asked, now, 320_000)
        });
        let (here, lost): (Vec<_>, Vec<_>) = silent.partition(|(_, camera)| camera.is_here());
        let greet = |(url, camera): &(&str, &Camera)| {
            let xaddr = XAddr::new(url).ok()?;
            let is_doubted = camera.doubted != 0 && now.saturating_sub(camera.doubted) < DOUBT;
            Some(if is_doubted {
                Work::DoubtAgain(xaddr, patience(camera))
            } else {
                Work::Greet(xaddr)
            })
        };
        (
            here.iter().filter_map(greet).collect(),
            lost.iter().filter_map(greet).collect(),
        )
    }

    /// Known cameras that are said to have gone.
    fn doubts(&self, byes: &[String], now: Moment) -> Vec<Work> {
        let doubted = self.cursor.cameras.iter().filter(|(_, camera)| {
            let is_calm = camera.doubted == 0 || now.saturating_sub(camera.doubted) >= CALM;
            byes.contains(&camera.uuid) && is_calm
        });
        doubted
            .filter_map(|(url, camera)| Some(Work::Doubt(XAddr::new(url).ok()?, patience(camera))))
            .collect()
    }

    /// The candidates to ask: those known first, those that failed last. Cameras that say what they said before are here.
    fn questions(&self, candidates: Vec<Candidate>, now: Moment) -> Vec<Work> {
        let (mut known, mut new, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut stale = 0;
        for candidate in candidates {
            let url = &candidate.xaddr.url;
            if let Some(camera) = self.cursor.cameras.get(url) {
                if !may_describe(&candidate, camera) {
                    if is_due(camera.misses, camera.asked, now, 30_000) {
                        known.push(Work::Greet(candidate.xaddr));
                    }
                    continue;
                }
                let age = now.saturating_sub(camera.asked);
                let is_new =
                    camera.announced != candidate.announced || camera.uuid != candidate.uuid;
                let is_freed = candidate.claim == Claim::Own && camera.claim != Claim::Own;
                let is_stale = age >= camera.fresh_for && stale < MAX_STALE;
                stale += usize::from(is_stale);
                let asks = match camera.misses {
                    0 => self.asks_again || is_stale || ((is_new || is_freed) && age >= CALM),
                    misses => is_due(misses, camera.asked, now, 30_000),
                };
                if asks {
                    known.push(Work::Ask(candidate));
                }
                continue;
            }
            match self.cursor.failed.get(url) {
                None => new.push(Work::Ask(candidate)),
                Some(before) if is_due(before.times, before.asked, now, 30_000) => {
                    failed.push(Work::Ask(candidate));
                }
                Some(before) => self.asker.host.skipped(url, "answer", &before.reason),
            }
        }
        known.append(&mut new);
        known.append(&mut failed);
        known
    }

    async fn perform(&mut self, works: Vec<Work>, is_patient: bool) {
        let this = &*self;
        let host = this.asker.host;
        let ends = host.elapsed().saturating_add(ASKING);
        let works = works.into_iter().map(|work| async move {
            let left = host.time_left().min(ends.saturating_sub(host.elapsed()));
            if left < Duration::from_millis(500) {
                return Outcome::NoTime;
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
        let asker = &self.asker;
        match work {
            Work::Greet(xaddr) => match asker.greet(&xaddr, GREETING.min(left)).await {
                Ok(took) => Outcome::Here(xaddr, took),
                Err(silence) => Outcome::Silent(xaddr, silence),
            },
            Work::Ask(candidate) => {
                let tries = if is_patient { TRIES } else { 1 };
                self.ask(candidate, left, tries).await
            }
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

    async fn ask(&self, candidate: Candidate, left: Duration, tries: u32) -> Outcome {
        let Asker { host, .. } = self.asker;
        let Candidate { xaddr, uuid, .. } = &candidate;
        let may_tell = self.may_tell(&candidate);
        let limit = camera::LIMIT.min(left);
        let began = host.elapsed();
        let mut tries_made = 1;
        loop {
            let result = self.asker.ask(xaddr, uuid, may_tell, limit).await;
            let passed = host.elapsed().saturating_sub(began);
            match result {
                Ok(told) => return Outcome::Told(candidate, told),
                Err(_) if tries_made < tries && passed < TRYING => {
                    tries_made += 1;
                    host.sleep(TRYING / TRIES).await;
                }
                Err(silence) => return Outcome::Untold(candidate, silence),
            }
        }
    }

    /// Whether a camera may see a digest of a password: if it announced itself from there, or the operator named the place.
    fn may_tell(&self, candidate: &Candidate) -> Result<(), &'static str> {
        let is_named =
            matches!(&candidate.xaddr.host, crate::xaddr::Host::Ip(ip) if self.details.names(*ip));
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

    fn take(&mut self, outcome: Outcome, now: Moment, is_patient: bool) {
        let host = self.asker.host;
        match outcome {
            Outcome::NoTime => self.is_cut_short = true,
            Outcome::Here(xaddr, took) => {
                if let Some(camera) = self.cursor.cameras.get_mut(&xaddr.url) {
                    camera.misses = 0;
                    camera.took = milliseconds(took);
                }
            }
            Outcome::Stays(xaddr) => {
                host.skipped(
                    &xaddr.url,
                    "farewell",
                    "somebody said that it goes; nothing shows that it has",
                );
                self.is_in_doubt = true;
                if let Some(camera) = self.cursor.cameras.get_mut(&xaddr.url) {
                    camera.doubted = now;
                }
            }
            Outcome::Silent(xaddr, silence) => {
                host.skipped(&xaddr.url, "answer", silence.to_string());
                self.miss(&xaddr.url, now);
            }
            Outcome::Told(candidate, told) => {
                self.cursor.failed.remove(&candidate.xaddr.url);
                let url = candidate.xaddr.url.clone();
                self.cursor
                    .cameras
                    .insert(url, remember(candidate, told, now));
            }
            Outcome::Untold(candidate, silence) => {
                let url = &candidate.xaddr.url;
                let mut reason = silence.to_string();
                if !candidate.is_own {
                    reason.push_str("; it was announced from another address");
                }
                host.skipped(url, "answer", &reason);
                if self.cursor.cameras.get(url).is_some() {
                    // A greeting can be forged, and the camera may be starting: the next full look decides.
                    if !is_patient {
                        self.miss(url, now);
                    }
                } else {
                    let times = self.cursor.failed.get(url).map_or(0, |failed| failed.times);
                    let failed = Failed {
                        times: times.saturating_add(1),
                        asked: now,
                        reason,
                    };
                    self.cursor.failed.insert(url.clone(), failed);
                }
            }
            Outcome::Gone(xaddr) => {
                if let Some(camera) = self.cursor.cameras.remove(&xaddr.url) {
                    self.departed.push(devices::device(&xaddr.url, &camera).id);
                }
            }
        }
    }

    fn miss(&mut self, url: &str, now: Moment) {
        if let Some(camera) = self.cursor.cameras.get_mut(url) {
            camera.misses = camera.misses.saturating_add(1);
            camera.asked = now;
        }
    }

    /// Forgets what has been silent for long, and the old address of a camera that has announced a new one.
    fn settle(&mut self, announced: &[String]) {
        self.cursor
            .cameras
            .retain(|_, camera| camera.misses <= MAX_MISSES);
        if self.details.xaddrs == XAddrs::All {
            return;
        }
        let here = |url: &str, camera: &Camera| {
            let xaddr = XAddr::new(url).ok().filter(|_| camera.is_here())?;
            Some((camera.uuid.clone(), xaddr.host))
        };
        let replaced: Vec<_> = announced
            .iter()
            .filter_map(|url| here(url, self.cursor.cameras.get(url)?))
            .collect();
        self.cursor.cameras.retain(|url, camera| {
            is_among(announced, url)
                || here(url, camera).is_none_or(|place| !replaced.contains(&place))
        });
    }
}

/// Whether a candidate is believed what it says of a known camera: a camera that speaks for itself needs nobody else to.
fn may_describe(candidate: &Candidate, camera: &Camera) -> bool {
    candidate.is_own || camera.claim == Claim::Foreign
}

/// Whether a sorted list has this URL.
fn is_among(announced: &[String], url: &str) -> bool {
    announced
        .binary_search_by(|other| other.as_str().cmp(url))
        .is_ok()
}

/// Whether something that failed so often is to be tried again: after one interval, then two, four, up to `most`. The
/// first is due at once, and the timer may be a little early.
fn is_due(times: u64, asked: Moment, now: Moment, most: Moment) -> bool {
    let pause = 10_000_u64
        .saturating_mul(1 << times.saturating_sub(1).min(8))
        .min(most);
    times == 0 || now.saturating_sub(asked) >= pause.saturating_sub(2_000)
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn remember(candidate: Candidate, told: Told, now: Moment) -> Camera {
    let mut scopes: Vec<String> = Vec::new();
    for scope in candidate.scopes.into_iter().chain(told.scopes) {
        let is_useful = devices::is_useful(&scope) && scopes.len() < MAX_SCOPES;
        if is_useful && !scopes.contains(&scope) {
            scopes.push(scope);
        }
    }
    Camera {
        uuid: candidate.uuid,
        announced: candidate.announced,
        claim: candidate.claim,
        scopes,
        info: told.info,
        asked: now,
        fresh_for: if told.is_cut_short { CUT_SHORT } else { FRESH },
        doubted: 0,
        misses: 0,
        took: milliseconds(told.took),
    }
}

/// How long the answer of a camera is waited for that may have gone: one that is known to be slow is given its time.
fn patience(camera: &Camera) -> Duration {
    Duration::from_millis(camera.took.saturating_mul(2).clamp(750, 4_000))
}
