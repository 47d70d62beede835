//! Runs one scan: decides which cameras to ask in which order, and applies their answers.

mod answer;
mod identity;
mod outcome;
mod tasks;

use std::cell::Cell;
use std::net::IpAddr;

use super::now;
use crate::details::Details;
use crate::discover::camera::Asker;
use crate::discover::candidates::{Candidate, ReceivedAnnouncement, collect};
use crate::discover::cursor::{Camera, Claim, Cursor, Moment};
use crate::xaddr::XAddr;
use tasks::{Task, answer_timeout};

/// Milliseconds for which a camera's answers are used before it is asked again.
const FRESH: Moment = 15 * 60_000;
/// Maximum number of cameras with outdated answers that one call asks again.
const MAX_STALE: usize = 16;
/// Maximum number of cameras with an unchanged announcement whose service one call checks.
const MAX_CHECKS: usize = 128;
/// Maximum number of new cameras that one call asks a second time. If more fail, packet loss is not the cause.
pub(super) const SECOND_CHANCES: usize = 32;
/// Minimum number of milliseconds between two requests to a camera that sends Hello.
const MIN_INTERVAL: Moment = 5_000;
/// Minimum number of milliseconds between two requests to a camera that did not answer: it may be starting.
const MIN_INTERVAL_FAILED: Moment = 1_000;
/// Milliseconds for which a false Bye is stored. A camera that falls silent in that time is checked once more.
const BYE_REMEMBERED: Moment = 60_000;

/// State of one scan.
#[derive(Debug)]
pub(super) struct Scan<'a> {
    pub details: &'a Details,
    pub asker: Asker<'a>,
    /// Maximum number of devices in an answer, and of those that departed.
    pub most: usize,
    pub cursor: Cursor,
    /// True if known cameras are asked again because credentials may have changed.
    pub asks_again: bool,
    /// True if time ran out before all tasks were done.
    pub is_cut_short: bool,
    /// True if a camera for which a Bye came still answers.
    pub is_bye_unconfirmed: bool,
    /// Number of cameras that may still be asked for their streams.
    pub streams_left: Cell<usize>,
    /// Number of new cameras that may still be asked a second time.
    pub second_chances: Cell<usize>,
    /// Number of new cameras that did not answer the first time they were asked.
    pub lost: usize,
    /// Device ids of cameras whose Bye was confirmed.
    pub departed: Vec<String>,
}

impl Scan<'_> {
    /// Handles all announced and all known cameras.
    pub(super) async fn scan_all(&mut self, received: &[ReceivedAnnouncement], byes: &[String]) {
        let collected = collect(self.details, &self.cursor, received);
        for left_out in &collected.left_out {
            self.asker
                .host
                .skipped(&left_out.subject, left_out.rule, &left_out.reason);
        }
        let mut announced: Vec<String> = collected
            .candidates
            .iter()
            .map(|one| one.xaddr.url.clone())
            .collect();
        announced.sort_unstable();
        self.forget_dropped(&announced, &collected.dropped);
        let now = now(self.asker.host);
        let mut tasks = self.bye_checks(byes, now);
        let (here, lost) = self.silent_cameras(&announced, byes, now);
        tasks.extend(here);
        tasks.extend(self.questions(collected.candidates, now));
        tasks.extend(lost);
        let locations = self.locations();
        self.run_tasks(tasks, false).await;
        self.forget_old(&announced);
        self.merge_by_reference(&locations, now);
    }

    /// Handles the cameras that sent Hello or Bye.
    pub(super) async fn scan_some(&mut self, hellos: &[ReceivedAnnouncement], byes: &[String]) {
        let collected = collect(self.details, &self.cursor, hellos);
        for left_out in &collected.left_out {
            self.asker
                .host
                .skipped(&left_out.subject, left_out.rule, &left_out.reason);
        }
        let now = now(self.asker.host);
        let mut tasks = self.bye_checks(byes, now);
        let mut candidates = Vec::new();
        for candidate in collected.candidates {
            let url = &candidate.xaddr.url;
            let known = self.cursor.cameras.get(url);
            // Only a full scan decides whether another camera has taken a known address.
            if known.is_some_and(|camera| {
                camera.uuid != candidate.uuid || !may_describe(&candidate, camera)
            }) {
                continue;
            }
            let not_before = match (self.cursor.cameras.get(url), self.cursor.failed.get(url)) {
                (Some(camera), _) => camera.asked.saturating_add(MIN_INTERVAL),
                (None, Some(failed)) => failed.asked.saturating_add(MIN_INTERVAL_FAILED),
                (None, None) => 0,
            };
            if now >= not_before {
                candidates.push(candidate);
            }
        }
        let locations = self.locations();
        // If the camera still answers at its old address, the new host is not sent credentials.
        let elsewhere = candidates.iter().filter_map(|one| self.elsewhere(one));
        let pings = elsewhere.map(Task::Ping).collect();
        self.run_tasks(pings, true).await;
        for mut candidate in candidates {
            if self.elsewhere(&candidate).is_some() {
                candidate.claim = Claim::Contested;
            }
            tasks.push(Task::Ask(candidate));
        }
        self.run_tasks(tasks, true).await;
        self.merge_by_reference(&locations, now);
    }

    /// Forgets cameras whose own announcement a filter now drops.
    fn forget_dropped(&mut self, announced: &[String], dropped: &[(String, IpAddr)]) {
        self.cursor.cameras.retain(|url, camera| {
            let is_dropped = |(uuid, source): &(String, IpAddr)| {
                *uuid == camera.uuid && XAddr::new(url).is_ok_and(|xaddr| xaddr.is_at(*source))
            };
            is_among(announced, url) || !dropped.iter().any(is_dropped)
        });
    }

    /// Returns pings of known cameras that did not announce themselves this time, since datagrams get lost. Cameras that
    /// were present are in the first list, others in the second.
    fn silent_cameras(
        &self,
        announced: &[String],
        byes: &[String],
        now: Moment,
    ) -> (Vec<Task>, Vec<Task>) {
        let silent = self.cursor.cameras.iter().filter(|(url, camera)| {
            !is_among(announced, url)
                && !byes.contains(&camera.uuid)
                && is_due(camera.misses, camera.asked, now, 320_000)
        });
        let (here, lost): (Vec<_>, Vec<_>) = silent.partition(|(_, camera)| camera.is_here());
        let ping = |(url, camera): &(&str, &Camera)| {
            let xaddr = XAddr::new(url).ok()?;
            let had_false_bye =
                camera.false_bye != 0 && now.saturating_sub(camera.false_bye) < BYE_REMEMBERED;
            Some(if had_false_bye {
                Task::CheckByeAgain(xaddr, answer_timeout(camera))
            } else {
                Task::Ping(xaddr)
            })
        };
        (
            here.iter().filter_map(ping).collect(),
            lost.iter().filter_map(ping).collect(),
        )
    }

    /// Returns checks of known cameras for which a Bye came.
    fn bye_checks(&self, byes: &[String], now: Moment) -> Vec<Task> {
        let said_gone = self.cursor.cameras.iter().filter(|(_, camera)| {
            let may_check =
                camera.false_bye == 0 || now.saturating_sub(camera.false_bye) >= MIN_INTERVAL;
            byes.contains(&camera.uuid) && may_check
        });
        said_gone
            .filter_map(|(url, camera)| {
                Some(Task::CheckBye(
                    XAddr::new(url).ok()?,
                    answer_timeout(camera),
                ))
            })
            .collect()
    }

    /// Returns the candidates to ask: known ones first, failed ones last. A camera whose announcement is unchanged counts as
    /// present; half of these also have their service checked.
    fn questions(&self, candidates: Vec<Candidate>, now: Moment) -> Vec<Task> {
        let (mut known, mut new, mut failed) = (Vec::new(), Vec::new(), Vec::new());
        let mut stale = 0;
        let mut unchanged: Vec<(Moment, XAddr)> = Vec::new();
        for candidate in candidates {
            let url = &candidate.xaddr.url;
            if let Some(camera) = self.cursor.cameras.get(url) {
                if !may_describe(&candidate, camera) {
                    if is_due(camera.misses, camera.asked, now, 30_000) {
                        known.push(Task::Ping(candidate.xaddr));
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
                    0 => {
                        self.asks_again || is_stale || ((is_new || is_freed) && age >= MIN_INTERVAL)
                    }
                    misses => is_due(misses, camera.asked, now, 30_000),
                };
                let since_check = now.saturating_sub(camera.checked);
                if camera.failures > 0 && !self.asks_again {
                    if is_due(camera.failures, camera.checked, now, 30_000) {
                        known.push(Task::Check(candidate.xaddr));
                    }
                } else if asks {
                    known.push(Task::Ask(candidate));
                } else if camera.is_here()
                    && since_check >= MIN_INTERVAL
                    && self.filter(camera).is_ok()
                {
                    unchanged.push((camera.checked, candidate.xaddr));
                }
                continue;
            }
            match self.cursor.failed.get(url) {
                None => new.push(Task::Ask(candidate)),
                Some(before)
                    if self.asks_again
                        || is_due(before.times.saturating_sub(1), before.asked, now, 30_000) =>
                {
                    failed.push(Task::Ask(candidate));
                }
                Some(before) => self.asker.host.skipped(url, "answer", &before.reason),
            }
        }
        unchanged.sort_unstable_by_key(|(checked, _)| *checked);
        let half = unchanged.len().div_ceil(2).min(MAX_CHECKS);
        let checks = unchanged.into_iter().take(half);
        known.extend(checks.map(|(_, xaddr)| Task::Check(xaddr)));
        known.append(&mut new);
        known.append(&mut failed);
        known
    }
}

/// Returns true if a candidate may describe a known camera. Other hosts may not describe a camera that announces itself.
fn may_describe(candidate: &Candidate, camera: &Camera) -> bool {
    candidate.is_own || camera.claim == Claim::Foreign
}

/// Returns true if the sorted list contains the URL.
fn is_among(announced: &[String], url: &str) -> bool {
    announced
        .binary_search_by(|other| other.as_str().cmp(url))
        .is_ok()
}

/// Returns true if a retry is due after `times` failures: at once if there are none, otherwise after 10 s, 20 s, 40 s and so
/// on, up to `most`. The 2 s allow for a timer that fires early.
fn is_due(times: u64, asked: Moment, now: Moment, most: Moment) -> bool {
    let pause = 10_000_u64
        .saturating_mul(1 << times.saturating_sub(1).min(8))
        .min(most);
    times == 0 || now.saturating_sub(asked) >= pause.saturating_sub(2_000)
}
