//! Updates the cursor from the outcomes of a scan.

use std::time::Duration;

use leafhost_sdk::net;

use super::tasks::Outcome;
use super::{FRESH, Scan, is_among};
use crate::details::XAddrs;
use crate::discover::camera::{AskError, Asked, CameraReply};
use crate::discover::candidates::Candidate;
use crate::discover::cursor::media::Sources;
use crate::discover::cursor::{Camera, Failed, Moment};
use crate::discover::devices;
use crate::xaddr::{Host, XAddr};

/// Milliseconds in place of [`FRESH`] if time ran out before the camera reported everything, or a channel is missing.
const CUT_SHORT: Moment = 30_000;
/// Maximum number of scopes stored per camera.
const MAX_SCOPES: usize = 64;
/// Number of missed scans after which a known camera is forgotten.
const MAX_MISSES: u64 = 8;

impl Scan<'_> {
    pub(super) fn apply(&mut self, outcome: Outcome, now: Moment, may_be_starting: bool) {
        let host = self.asker.host;
        match outcome {
            Outcome::NoTime => self.is_cut_short = true,
            Outcome::Later => {}
            Outcome::Here(xaddr, took) => {
                if let Some(camera) = self.cursor.cameras.get_mut(&xaddr.url) {
                    camera.found(now);
                    camera.took = milliseconds(took);
                }
            }
            Outcome::Fails(xaddr, error) => self.fail(&xaddr.url, &error, now),
            Outcome::Stays(xaddr) => {
                host.skipped(
                    &xaddr.url,
                    "farewell",
                    "a Bye was received; nothing shows that the camera is gone",
                );
                self.is_bye_unconfirmed = true;
                if let Some(camera) = self.cursor.cameras.get_mut(&xaddr.url) {
                    camera.false_bye = now;
                }
            }
            Outcome::Silent(xaddr, error) => {
                host.skipped(&xaddr.url, "answer", error.to_string());
                self.miss(&xaddr.url, now);
            }
            Outcome::Asked(asked) => {
                for asked in asked {
                    self.apply_answer(asked, now, may_be_starting);
                }
            }
            // The camera may reappear at another address, so the agent's grace period applies.
            Outcome::Gone(xaddr) if self.follows_references() => self.miss(&xaddr.url, now),
            Outcome::Gone(XAddr { url, .. }) => {
                if let Some(camera) = self.cursor.cameras.remove(&url) {
                    let devices = devices::devices(&url, &camera, self.details);
                    let ids = devices.into_iter().map(|device| device.id);
                    let left = self.most.saturating_sub(self.departed.len());
                    self.departed.extend(ids.take(left));
                }
            }
        }
    }

    fn apply_answer(
        &mut self,
        (candidate, asked): (Candidate, Asked),
        now: Moment,
        may_be_starting: bool,
    ) {
        let url = candidate.xaddr.url.clone();
        let held_back = self.refused(&url, now);
        let refused = if asked.is_refused {
            now
        } else {
            held_back.unwrap_or_default()
        };
        let error = match asked.reply {
            Ok(mut reply) => {
                self.cursor.failed.remove(&url);
                let cameras = &self.cursor.cameras;
                let here = cameras.get(&url).filter(|one| one.uuid == candidate.uuid);
                let before = here.or_else(|| {
                    let mut cameras = cameras.iter().filter(|_| self.follows_references());
                    let (_, camera) = cameras.find(|(_, one)| one.uuid == candidate.uuid)?;
                    Some(camera)
                });
                let mut fresh_for = FRESH;
                if let Some(before) = before {
                    let (media, old) = (&mut reply.info.media, &before.info.media);
                    media.keep(old, here.is_none());
                    // A recorder may report its channels one by one while it starts: it is asked again soon, then less often.
                    if media.lacks_source_of(old) {
                        fresh_for = CUT_SHORT;
                    } else if old.known == Sources::Several {
                        fresh_for = before.fresh_for.saturating_mul(2);
                    }
                }
                // An incomplete answer keeps the earlier values of missing fields.
                if let (Some(before), false) = (before, reply.info.trouble.is_empty()) {
                    reply.info.fill(&before.info);
                    if reply.scopes.is_empty() {
                        reply.scopes.clone_from(&before.scopes);
                    }
                }
                let moved = before.map(|before| (before.moved, before.moved_from.clone()));
                let mut camera = remember(candidate, reply, now);
                (camera.moved, camera.moved_from) = moved.unwrap_or_default();
                camera.refused = refused;
                camera.fresh_for = camera.fresh_for.min(fresh_for);
                self.cursor.cameras.insert(url, camera);
                return;
            }
            Err(error) => error,
        };
        let mut reason = error.to_string();
        if !candidate.is_own {
            let source = candidate.source;
            reason = format!("{reason}; it was announced from {source}");
            if !self.is_in_a_network(&candidate.xaddr.host) {
                reason.push_str(", and is in no network of this node: the camera's own address is probably misconfigured");
            }
        }
        self.asker.host.skipped(&url, "answer", &reason);
        if let Some(camera) = self.cursor.cameras.get_mut(&url) {
            camera.refused = refused;
            let is_same = camera.uuid == candidate.uuid;
            if is_same && error.is_refusal() {
                camera.found(now);
                camera.announced = candidate.announced;
                camera.claim = candidate.claim;
                camera.asked = now;
                camera.fresh_for = FRESH;
                camera.info.trouble = error.to_string();
                camera.hides_time = true;
                let known = &mut camera.info.media.known;
                *known = (*known).max(Sources::NotReported);
                return;
            }
            // A Hello can be forged, and the camera may be starting: the next full scan decides.
            match (may_be_starting, is_same) {
                (true, _) => {}
                (false, true) => self.fail(&url, &error, now),
                (false, false) => self.miss(&url, now),
            }
            return;
        }
        let times = self
            .cursor
            .failed
            .get(&url)
            .map_or(0, |failed| failed.times);
        self.lost += usize::from(times == 0 && error.is_loss());
        let failed = Failed {
            times: times.saturating_add(1),
            asked: now,
            refused,
            reason,
        };
        self.cursor.failed.insert(url, failed);
    }

    /// Returns true if the host is in a network of a granted interface, or has a name.
    fn is_in_a_network(&self, host: &Host) -> bool {
        let Host::Ip(ip) = host else {
            return true;
        };
        let interfaces = self.asker.host.interfaces();
        let mut addresses = interfaces.iter().flat_map(|one| &one.addresses);
        addresses.any(|address| address.contains(*ip))
    }

    fn miss(&mut self, url: &str, now: Moment) {
        if let Some(camera) = self.cursor.cameras.get_mut(url) {
            if camera.is_here() {
                self.cursor.sent_digest = None;
            }
            let misses = camera.misses.saturating_add(1);
            camera.found(now);
            camera.misses = misses;
            camera.asked = now;
        }
    }

    /// Records that the camera announces itself but its service does not answer. A single failure may be packet loss unless
    /// the connection was refused.
    fn fail(&mut self, url: &str, error: &AskError, now: Moment) {
        if let AskError::Network(net::Error::Denied(_)) = error {
            self.miss(url, now);
            return;
        }
        let Some(camera) = self.cursor.cameras.get_mut(url) else {
            return;
        };
        let failures = camera.failures.saturating_add(1);
        let is_sure = matches!(error, AskError::Network(net::Error::Refused))
            || failures > 1
            || !camera.is_here();
        camera.found(now);
        camera.failures = failures;
        if is_sure {
            camera.unhealthy = format!("it answers probes, but {error}");
        }
    }

    /// Forgets cameras silent for too long, and the old address of a camera that announced a new one.
    pub(super) fn forget_old(&mut self, announced: &[String]) {
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

fn remember(candidate: Candidate, mut reply: CameraReply, now: Moment) -> Camera {
    if let (Host::Ip(ip), true) = (&candidate.xaddr.host, reply.info.ip.is_empty()) {
        reply.info.ip = ip.to_string();
    }
    if reply.info.macs.is_empty() {
        // Other hosts say nothing about the camera's hardware.
        let announced = candidate.scopes.iter().filter(|_| candidate.is_own);
        let mut scopes = reply.scopes.iter().chain(announced);
        if let Some(mac) = scopes.find_map(|scope| devices::mac(scope)) {
            reply.info.mac.clone_from(&mac);
            reply.info.macs.push(mac);
        }
    }
    let mut scopes: Vec<String> = Vec::new();
    for scope in candidate.scopes.into_iter().chain(reply.scopes) {
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
        info: reply.info,
        asked: now,
        fresh_for: if reply.is_cut_short { CUT_SHORT } else { FRESH },
        checked: now,
        took: milliseconds(reply.took),
        hides_time: reply.hides_time,
        ..Camera::default()
    }
}
