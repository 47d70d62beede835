//! One look at cameras: whom to ask in which order, and what follows from the answers.

mod answer;
mod identity;
mod outcome;
mod work;

use std::cell::Cell;
use std::net::IpAddr;

use super::now;
use crate::details::Details;
use crate::discover::camera::Asker;
use crate::discover::cursor::{Camera, Claim, Cursor, Moment};
use crate::discover::gather::{Candidate, Heard, gather};
use crate::xaddr::XAddr;
use work::{Work, patience};

/// How many milliseconds what a camera told is good.
const FRESH: Moment = 15 * 60_000;
/// How many cameras are asked anew in one call because what they told has become old.
const MAX_STALE: usize = 16;
/// The services of how many cameras are looked at in one call, of those that announce what they announced before.
const MAX_CHECKS: usize = 128;
/// How many new cameras are given a second chance in one call: where more do not answer, it is not that something was lost.
pub(super) const SECOND_CHANCES: usize = 32;
/// How long after it was asked a camera that greets is asked again.
const CALM: Moment = 5_000;
/// The same for one that did not answer: it may have been starting.
const CALM_FAILED: Moment = 1_000;
/// How long a farewell that was not found true is remembered: a camera that is silent meanwhile is looked at twice.
const DOUBT: Moment = 60_000;

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
    /// How many new cameras may be asked a second time.
    pub second_chances: Cell<usize>,
    /// How many new cameras did not answer when they were first asked.
    pub lost: usize,
    /// Ids of the cameras that were found to have gone.
    pub departed: Vec<String>,
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
        let places = self.places();
        self.perform(works, false).await;
        self.settle(&announced);
        self.unite(&places, now);
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
        let mut candidates = Vec::new();
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
                candidates.push(candidate);
            }
        }
        let places = self.places();
        // Who says that it is a camera which still answers elsewhere is not told what that one is.
        let elsewhere = candidates.iter().filter_map(|one| self.elsewhere(one));
        let greetings = elsewhere.map(Work::Greet).collect();
        self.perform(greetings, true).await;
        for mut candidate in candidates {
            if self.elsewhere(&candidate).is_some() {
                candidate.claim = Claim::Contested;
            }
            works.push(Work::Ask(candidate));
        }
        self.perform(works, true).await;
        self.unite(&places, now);
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

    /// The candidates to ask: those known first, those that failed last. Cameras that say what they said before are here;
    /// of half of them it is seen whether their services are, too.
    fn questions(&self, candidates: Vec<Candidate>, now: Moment) -> Vec<Work> {
        let (mut known, mut new, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut stale = 0;
        let mut unchanged: Vec<(Moment, XAddr)> = Vec::new();
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
                let since_check = now.saturating_sub(camera.checked);
                if camera.failures > 0 && !self.asks_again {
                    if is_due(camera.failures, camera.checked, now, 30_000) {
                        known.push(Work::Check(candidate.xaddr));
                    }
                } else if asks {
                    known.push(Work::Ask(candidate));
                } else if camera.is_here() && since_check >= CALM && self.filter(camera).is_ok() {
                    unchanged.push((camera.checked, candidate.xaddr));
                }
                continue;
            }
            match self.cursor.failed.get(url) {
                None => new.push(Work::Ask(candidate)),
                Some(before)
                    if self.asks_again
                        || is_due(before.times.saturating_sub(1), before.asked, now, 30_000) =>
                {
                    failed.push(Work::Ask(candidate));
                }
                Some(before) => self.asker.host.skipped(url, "answer", &before.reason),
            }
        }
        unchanged.sort_unstable_by_key(|(checked, _)| *checked);
        let half = unchanged.len().div_ceil(2).min(MAX_CHECKS);
        let checks = unchanged.into_iter().take(half);
        known.extend(checks.map(|(_, xaddr)| Work::Check(xaddr)));
        known.append(&mut new);
        known.append(&mut failed);
        known
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
