//! Selects the cameras to ask from the received announcements: filters, removes duplicates, bounds the number. It sends
//! nothing.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::details::{Details, Identity, XAddrs};
use crate::discover::cursor::{Claim, Cursor, digest};
use crate::filter;
use crate::soap::cut;
use crate::wsd::{self, Announcement};
use crate::xaddr::{self, XAddr};

/// Maximum number of cameras that one call considers.
pub const MAX_CAMERAS: usize = 1_000;
/// Maximum number of cameras that one source address may announce; recorders and gateways announce one for each channel.
const MAX_PER_SOURCE: usize = 512;
/// Maximum number of bytes in an endpoint reference.
pub const MAX_UUID: usize = 128;

/// Announcement with its sender.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReceivedAnnouncement {
    /// Address of the sender, which nothing authenticates.
    pub source: IpAddr,
    pub announcement: Announcement,
}

impl ReceivedAnnouncement {
    /// Fills the empty types and scopes of this announcement with those of an earlier one.
    #[must_use]
    pub fn with(mut self, before: Announcement) -> Self {
        let own = &mut self.announcement;
        if own.types.is_empty() {
            own.is_onvif = before.is_onvif;
            own.types = before.types;
        }
        if own.scopes.is_empty() {
            own.scopes = before.scopes;
        }
        self
    }
}

/// Camera to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// Endpoint reference without `urn:uuid:`.
    pub uuid: String,
    /// Address to ask.
    pub xaddr: XAddr,
    /// Address of the sender of the announcement.
    pub source: IpAddr,
    /// True if the announcement came from the host that `xaddr` names.
    pub is_own: bool,
    /// Proof of the camera's identity by the announcement.
    pub claim: Claim,
    /// Announced scopes.
    pub scopes: Vec<String>,
    /// Digest of the announcement.
    pub announced: u64,
    /// Same camera at the address from which the announcement came, announced or not, asked if `xaddr` fails.
    pub alternative: Option<Box<Candidate>>,
    /// Number of this candidate among those of its source, from 1.
    turn: usize,
}

/// Announcement, or a part of one, that is not asked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeftOut {
    /// Endpoint reference or address.
    pub subject: String,
    /// Rule that excluded it.
    pub rule: &'static str,
    pub reason: String,
}

/// Result of [`collect`].
#[derive(Debug, Default)]
pub struct Collected {
    /// Cameras to ask, known ones first.
    pub candidates: Vec<Candidate>,
    /// Announcements that are not asked, each reason once.
    pub left_out: Vec<LeftOut>,
    /// Endpoint references whose announcement a filter dropped, with the announcing address.
    pub dropped: Vec<(String, IpAddr)>,
    said: Index,
}

/// List indices or counts by text. This module uses no other map type, because each one adds some kilobytes to the
/// component.
type Index = BTreeMap<String, usize>;

impl Collected {
    /// Records a reason unless it is recorded already or there are too many. Returns true if it was recorded.
    fn leave_out(&mut self, subject: &str, rule: &'static str, reason: impl Into<String>) -> bool {
        let reason = reason.into();
        let is_new = |said: &mut Index, text| said.insert(text, 0).is_none();
        if self.left_out.len() < MAX_CAMERAS
            && is_new(&mut self.said, format!("{subject} {rule} {reason}"))
        {
            self.left_out.push(LeftOut {
                subject: subject.to_owned(),
                rule,
                reason,
            });
            return true;
        }
        false
    }
}

/// Converts the received announcements into candidates.
pub fn collect(details: &Details, cursor: &Cursor, received: &[ReceivedAnnouncement]) -> Collected {
    let mut collected = Collected::default();
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut places = Index::new();
    let mut turns = Index::new();
    let cameras_of = count_cameras(received);
    for ReceivedAnnouncement {
        source,
        announcement,
    } in received
    {
        let uuid = wsd::uuid(&announcement.endpoint);
        for xaddr in usable(details, announcement, &uuid, *source, &mut collected) {
            let at = |xaddr: XAddr| Candidate {
                uuid: uuid.clone(),
                source: *source,
                is_own: xaddr.is_at(*source),
                claim: Claim::Foreign,
                scopes: announcement.scopes.clone(),
                announced: digest_of(announcement),
                alternative: None,
                turn: 0,
                xaddr,
            };
            let is_alone = cameras_of.get(&source.to_string()) == Some(&1);
            let unannounced = (is_alone && details.xaddrs == XAddrs::First)
                .then(|| xaddr.at_host(*source))
                .flatten();
            let announced = own_address(details, announcement, *source);
            let is_announced = announced.is_some();
            let alternative = announced.or(unannounced).map(at);
            let mut candidate = at(xaddr);
            if let Some(alternative) = alternative.filter(|_| !candidate.is_own) {
                let is_known = |one: &Candidate| {
                    let known = cursor.cameras.get(&one.xaddr.url);
                    known.is_some_and(|camera| camera.uuid == uuid)
                };
                // The address is part of the device's id, so a chosen address stays chosen.
                match (is_known(&candidate), is_known(&alternative)) {
                    (true, _) => {}
                    (false, true) => {
                        if !is_announced {
                            let (used, wrong) = (&alternative.xaddr.url, &candidate.xaddr.url);
                            let reason = format!(
                                "{used} is used, the sender's address: the announced address {wrong} did not answer"
                            );
                            collected.leave_out(&format!("{uuid} at {source}"), "XAddrs", reason);
                        }
                        candidate = alternative;
                    }
                    (false, false) => candidate.alternative = Some(Box::new(alternative)),
                }
            }
            let key = format!("{} {uuid}", candidate.xaddr.url);
            let known = places
                .get(&key)
                .and_then(|place| candidates.get_mut(*place));
            if let Some(known) = known {
                // A camera's own announcement takes precedence over one from another host.
                let rank =
                    |one: &Candidate| (!one.is_own, one.alternative.is_none(), one.announced);
                if rank(&candidate) < rank(known) {
                    candidate.turn = known.turn;
                    *known = candidate;
                }
                continue;
            }
            let turn = turns.entry(source.to_string()).or_default();
            *turn += 1;
            if *turn > MAX_PER_SOURCE {
                let reason = format!("announces more than {MAX_PER_SOURCE} cameras");
                collected.leave_out(&source.to_string(), "announcement", reason);
                continue;
            }
            candidate.turn = *turn;
            places.insert(key, candidates.len());
            candidates.push(candidate);
        }
    }
    deduplicate(details, cursor, candidates, &mut collected);
    assign_claims(details, cursor, &mut collected.candidates);
    if details.identity == Identity::EndpointReference {
        keep_known(cursor, &mut collected);
    }
    collected
}

/// Counts the endpoint references that each source announces. A source with several is a recorder or a router: its own
/// address identifies none of them.
fn count_cameras(received: &[ReceivedAnnouncement]) -> Index {
    let (mut counts, mut counted) = (Index::new(), Index::new());
    for one in received {
        let source = one.source.to_string();
        let camera = format!("{source} {}", wsd::uuid(&one.announcement.endpoint));
        if counted.insert(camera, 0).is_none() {
            *counts.entry(source).or_default() += 1;
        }
    }
    counts
}

/// Returns the usable addresses of an announcement.
fn usable(
    details: &Details,
    announcement: &Announcement,
    uuid: &str,
    source: IpAddr,
    collected: &mut Collected,
) -> Vec<XAddr> {
    if uuid.is_empty() || uuid.len() > MAX_UUID || uuid.chars().any(char::is_control) {
        let reason = "has no endpoint reference of a usable length";
        collected.leave_out(&source.to_string(), "announcement", reason);
        return Vec::new();
    }
    let subject = || format!("{uuid} at {source}");
    if !announcement.is_onvif {
        let types = cut(&announcement.types.join(" "));
        collected.leave_out(
            &subject(),
            "types",
            format!("is not an ONVIF device, but {types}"),
        );
        return Vec::new();
    }
    if let Err(dropped) = filter::announcement(details, uuid, &announcement.scopes) {
        if collected.leave_out(&subject(), dropped.rule, dropped.reason) {
            collected.dropped.push((uuid.to_owned(), source));
        }
        return Vec::new();
    }
    if announcement.more_xaddrs > 0 {
        let all = announcement.more_xaddrs + announcement.xaddrs.len();
        let most = wsd::MAX_XADDRS;
        collected.leave_out(
            &subject(),
            "XAddrs",
            format!("announces {all} addresses, {most} are tried"),
        );
    }
    let chosen: Vec<XAddr> = match details.xaddrs {
        XAddrs::First => xaddr::choose(&announcement.xaddrs).into_iter().collect(),
        XAddrs::All => announcement
            .xaddrs
            .iter()
            .filter_map(|text| XAddr::new(text).ok())
            .collect(),
    };
    if chosen.is_empty() || details.xaddrs == XAddrs::All {
        for text in &announcement.xaddrs {
            if let Err(error) = XAddr::new(text) {
                collected.leave_out(
                    &format!("{uuid} at {}", cut(text)),
                    "XAddrs",
                    error.to_string(),
                );
            }
        }
    }
    if announcement.xaddrs.is_empty() {
        let reason = "announces no address, and names none when it is asked";
        collected.leave_out(&subject(), "XAddrs", reason);
    }
    chosen
}

/// Returns the announced address that is the sender's, if only one address of a camera becomes a device.
fn own_address(details: &Details, announcement: &Announcement, source: IpAddr) -> Option<XAddr> {
    let is_first = details.xaddrs == XAddrs::First;
    is_first
        .then(|| xaddr::choose_at(&announcement.xaddrs, source))
        .flatten()
}

/// Sums the digests of addresses and scopes, so that their order does not matter.
fn digest_of(announcement: &Announcement) -> u64 {
    let of = |kind, list: &[String]| {
        let digests = list.iter().map(|text| digest([kind, text.as_str()]));
        digests.fold(0, u64::wrapping_add)
    };
    digest([announcement.metadata_version.as_str()])
        .wrapping_add(of("xaddr", &announcement.xaddrs))
        .wrapping_add(of("scope", &announcement.scopes))
}

/// Returns the candidate or its alternative, whichever is at the address from which the announcement came.
fn own(candidate: &mut Candidate) -> Option<&mut Candidate> {
    if candidate.is_own {
        return Some(candidate);
    }
    candidate.alternative.as_deref_mut()
}

/// Sets each candidate's claim. If two hosts announce the same endpoint reference from their own address, neither is
/// trusted, except the one that was trusted before the other appeared.
///
/// With `identity: endpoint-reference` only current announcements count: a camera that does not announce itself has moved.
fn assign_claims(details: &Details, cursor: &Cursor, candidates: &mut [Candidate]) {
    let mut claims = Index::new();
    let mut claim = |uuid: &str, xaddr: &XAddr| {
        let host = xaddr.host.to_string();
        if claims.insert(format!("{uuid} {host}"), 0).is_none() {
            *claims.entry(uuid.to_owned()).or_default() += 1;
        }
    };
    for candidate in candidates.iter_mut().filter_map(own) {
        claim(&candidate.uuid, &candidate.xaddr);
    }
    let is_bound = |_: &(_, _)| details.identity == Identity::Url;
    for (url, camera) in cursor.cameras.iter().filter(is_bound) {
        if let (true, Ok(xaddr)) = (
            camera.is_here() && camera.claim != Claim::Foreign,
            XAddr::new(url),
        ) {
            claim(&camera.uuid, &xaddr);
        }
    }
    for candidate in candidates.iter_mut().filter_map(own) {
        let known = cursor.cameras.get(&candidate.xaddr.url);
        let was_own =
            known.is_some_and(|camera| camera.claim == Claim::Own && camera.uuid == candidate.uuid);
        let is_alone = claims.get(&candidate.uuid) == Some(&1);
        candidate.claim = if was_own || is_alone {
            Claim::Own
        } else {
            Claim::Contested
        };
    }
}

/// Keeps one candidate per address, and one per endpoint reference and host. Cameras that announce themselves come first,
/// then known cameras, then the sources in turn, so that no host displaces a camera by sending many announcements.
fn deduplicate(
    details: &Details,
    cursor: &Cursor,
    candidates: Vec<Candidate>,
    collected: &mut Collected,
) {
    let mut order = Index::new();
    for (place, candidate) in candidates.iter().enumerate() {
        let Candidate { uuid, xaddr, .. } = candidate;
        let known = cursor.cameras.get(&xaddr.url);
        let is_known = known.is_some_and(|camera| camera.uuid == *uuid);
        let rank = u8::from(!candidate.is_own) * 2 + u8::from(!is_known);
        order.insert(
            format!("{rank} {:03} {} {uuid}", candidate.turn, xaddr.url),
            place,
        );
    }
    let mut candidates: Vec<Option<Candidate>> = candidates.into_iter().map(Some).collect();
    let (mut urls, mut hosts) = (Index::new(), Index::new());
    for place in order.into_values() {
        let Some(mut candidate) = candidates.get_mut(place).and_then(Option::take) else {
            continue;
        };
        if urls.contains_key(&candidate.xaddr.url)
            && let Some(alternative) = candidate.alternative.take()
        {
            candidate = *alternative;
        }
        let Candidate { uuid, xaddr, .. } = &candidate;
        let subject = || format!("{uuid} at {}", xaddr.url);
        let host = format!("{uuid} {}", xaddr.host);
        let other = |index: &Index, key: &str| {
            index
                .get(key)
                .and_then(|place| collected.candidates.get(*place))
        };
        if let Some(other) = other(&urls, &xaddr.url) {
            let reason = format!("the same address is announced for {}", other.uuid);
            collected.leave_out(&subject(), "XAddrs", reason);
        } else if let (XAddrs::First, Some(other)) = (details.xaddrs, other(&hosts, &host)) {
            let reason = format!("the same camera is announced at {}", other.xaddr.url);
            collected.leave_out(&subject(), "XAddrs", reason);
        } else if collected.candidates.len() >= MAX_CAMERAS {
            let reason = format!("more than {MAX_CAMERAS} cameras are announced");
            collected.leave_out(&subject(), "announcement", reason);
        } else {
            urls.insert(xaddr.url.clone(), collected.candidates.len());
            hosts.insert(host, collected.candidates.len());
            collected.candidates.push(candidate);
        }
    }
    if details.xaddrs == XAddrs::First {
        report_clones(details, &hosts, collected);
    }
}

/// Leaves out other hosts that claim the endpoint reference of a known camera that still announces itself. It is called if
/// the endpoint reference alone is the id.
fn keep_known(cursor: &Cursor, collected: &mut Collected) {
    let is_known = |one: &Candidate| {
        let known = cursor.cameras.get(&one.xaddr.url);
        known.is_some_and(|camera| camera.is_here() && camera.uuid == one.uuid)
    };
    let mut known = Index::new();
    for (place, candidate) in collected.candidates.iter().enumerate() {
        if is_known(candidate) {
            known.insert(candidate.uuid.clone(), place);
        }
    }
    let candidates = std::mem::take(&mut collected.candidates);
    let (kept, others): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .partition(|one| is_known(one) || !known.contains_key(&one.uuid));
    collected.candidates = kept;
    for Candidate { uuid, xaddr, .. } in others {
        let reason = "another known host is this camera, and announces itself";
        collected.leave_out(
            &format!("{uuid} at {}", xaddr.url),
            "endpoint reference",
            reason,
        );
    }
}

/// Reports each endpoint reference that several hosts claim, and which of them become devices. `hosts` is sorted by endpoint
/// reference.
fn report_clones(details: &Details, hosts: &Index, collected: &mut Collected) {
    let mut claims: Vec<(String, Vec<String>)> = Vec::new();
    for place in hosts.values() {
        let Some(Candidate { uuid, xaddr, .. }) = collected.candidates.get(*place) else {
            continue;
        };
        match claims.last_mut() {
            Some((other, urls)) if other == uuid => urls.push(xaddr.url.clone()),
            _ => claims.push((uuid.clone(), vec![xaddr.url.clone()])),
        }
    }
    for (uuid, urls) in claims.into_iter().filter(|(_, urls)| urls.len() > 1) {
        let what = match details.identity {
            Identity::Url => "each that answers is a device of its own",
            Identity::EndpointReference => "the one that was found first is the device",
        };
        let reason = format!("is claimed by {}; {what}", urls.join(" and "));
        collected.leave_out(&uuid, "endpoint reference", reason);
    }
}

#[cfg(test)]
mod tests;
