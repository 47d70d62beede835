//! What is remembered of a look, and what is forgotten.

use std::time::Duration;

use super::work::Outcome;
use super::{FRESH, Pass, is_among};
use crate::details::XAddrs;
use crate::discover::camera::{Asked, Told};
use crate::discover::cursor::{Camera, Failed, Moment};
use crate::discover::devices;
use crate::discover::gather::Candidate;
use crate::xaddr::{Host, XAddr};

/// How many milliseconds what a camera told is good where it did not get to tell all.
const CUT_SHORT: Moment = 30_000;
/// How many scopes of a camera are remembered.
const MAX_SCOPES: usize = 64;
/// How often a known camera may be silent before it is forgotten.
const MAX_MISSES: u64 = 8;

impl Pass<'_> {
    pub(super) fn take(&mut self, outcome: Outcome, now: Moment, is_patient: bool) {
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
            Outcome::Asked(asked) => {
                for asked in asked {
                    self.take_asked(asked, now, is_patient);
                }
            }
            Outcome::Gone(xaddr) => {
                if let Some(camera) = self.cursor.cameras.remove(&xaddr.url) {
                    self.departed.push(devices::device(&xaddr.url, &camera).id);
                }
            }
        }
    }

    fn take_asked(
        &mut self,
        (candidate, asked): (Candidate, Asked),
        now: Moment,
        is_patient: bool,
    ) {
        let url = candidate.xaddr.url.clone();
        let held_back = self.refused(&url, now);
        let refused = if asked.is_refused {
            now
        } else {
            held_back.unwrap_or_default()
        };
        let silence = match asked.told {
            Ok(mut told) => {
                self.cursor.failed.remove(&url);
                let before = self.cursor.cameras.get(&url);
                let before = before.filter(|camera| camera.uuid == candidate.uuid);
                // That it is not asked for all does not make it another camera.
                if let (Some(before), Some(_)) = (before, held_back) {
                    told.info.fill(&before.info);
                    if told.scopes.is_empty() {
                        told.scopes.clone_from(&before.scopes);
                    }
                }
                let mut camera = remember(candidate, told, now);
                camera.refused = refused;
                self.cursor.cameras.insert(url, camera);
                return;
            }
            Err(silence) => silence,
        };
        let mut reason = silence.to_string();
        if !candidate.is_own {
            reason.push_str("; it was announced from another address");
        }
        self.asker.host.skipped(&url, "answer", &reason);
        if let Some(camera) = self.cursor.cameras.get_mut(&url) {
            camera.refused = refused;
            // A greeting can be forged, and the camera may be starting: the next full look decides.
            if !is_patient {
                self.miss(&url, now);
            }
            return;
        }
        let times = self
            .cursor
            .failed
            .get(&url)
            .map_or(0, |failed| failed.times);
        let failed = Failed {
            times: times.saturating_add(1),
            asked: now,
            refused,
            reason,
        };
        self.cursor.failed.insert(url, failed);
    }

    fn miss(&mut self, url: &str, now: Moment) {
        if let Some(camera) = self.cursor.cameras.get_mut(url) {
            camera.misses = camera.misses.saturating_add(1);
            camera.asked = now;
        }
    }

    /// Forgets what has been silent for long, and the old address of a camera that has announced a new one.
    pub(super) fn settle(&mut self, announced: &[String]) {
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

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn remember(candidate: Candidate, mut told: Told, now: Moment) -> Camera {
    if let (Host::Ip(ip), true) = (&candidate.xaddr.host, told.info.ip.is_empty()) {
        told.info.ip = ip.to_string();
    }
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
        refused: 0,
        doubted: 0,
        misses: 0,
        took: milliseconds(told.took),
    }
}
