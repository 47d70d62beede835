//! From what was heard on the network to the cameras to ask: filtered, without doubles, bounded. Asks nobody.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::cursor::{Cursor, digest};
use crate::details::{Details, XAddrs};
use crate::filter;
use crate::wsd::{self, Announcement};
use crate::xaddr::{self, Host, XAddr};

/// How many cameras of one call are looked at.
pub const MAX_CAMERAS: usize = 1_000;
/// How many cameras one address may announce; a recorder has one for each channel.
const MAX_PER_SOURCE: usize = 64;
/// The longest endpoint reference, in bytes.
const MAX_UUID: usize = 128;

/// Somebody said this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The sender's address. Nobody has authenticated it.
    pub source: IpAddr,
    /// What.
    pub announcement: Announcement,
}

/// A camera to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The endpoint reference, without `urn:uuid:`.
    pub uuid: String,
    /// Where.
    pub xaddr: XAddr,
    /// Whether it was announced from that very address.
    pub is_own: bool,
    /// The scopes.
    pub scopes: Vec<String>,
    /// What was announced, as a digest.
    pub announced: u64,
    /// The how many'th of its source this is.
    turn: usize,
}

/// Something that was heard and is not asked.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeftOut {
    /// The endpoint reference or address.
    pub subject: String,
    /// What decided.
    pub rule: &'static str,
    /// Why.
    pub reason: String,
}

/// What is to be done with what was heard.
#[derive(Debug, Default)]
pub struct Gathered {
    /// To ask, the known ones first.
    pub candidates: Vec<Candidate>,
    /// Not to ask, each once.
    pub left_out: BTreeSet<LeftOut>,
    /// Endpoint references that a filter of the announcement dropped.
    pub dropped: BTreeSet<String>,
}

impl Gathered {
    fn leave(&mut self, subject: &str, rule: &'static str, reason: impl Into<String>) {
        if self.left_out.len() < MAX_CAMERAS {
            self.left_out.insert(LeftOut {
                subject: subject.to_owned(),
                rule,
                reason: reason.into(),
            });
        }
    }
}

/// Sorts out what was heard.
pub fn gather(details: &Details, cursor: &Cursor, heard: &[Heard]) -> Gathered {
    let mut gathered = Gathered::default();
    let mut candidates: BTreeMap<(String, String), Candidate> = BTreeMap::new();
    let mut turns: BTreeMap<IpAddr, usize> = BTreeMap::new();
    for Heard {
        source,
        announcement,
    } in heard
    {
        let uuid = wsd::uuid(&announcement.endpoint);
        for xaddr in usable(details, announcement, &uuid, *source, &mut gathered) {
            let is_own = xaddr.is_at(*source);
            let key = (uuid.clone(), xaddr.url.clone());
            let known = candidates.get(&key);
            // What a camera says of itself counts more than what others say of it.
            if known.is_some_and(|known| known.is_own && !is_own) {
                continue;
            }
            let mut candidate = Candidate {
                uuid: uuid.clone(),
                is_own,
                scopes: announcement.scopes.clone(),
                announced: digest_of(announcement),
                turn: 0,
                xaddr,
            };
            match known {
                Some(known) if known.is_own == is_own && known.announced <= candidate.announced => {
                }
                Some(known) => {
                    candidate.turn = known.turn;
                    candidates.insert(key, candidate);
                }
                None => {
                    let turn = turns.entry(*source).or_default();
                    *turn += 1;
                    if *turn > MAX_PER_SOURCE {
                        let reason = format!("announces more than {MAX_PER_SOURCE} cameras");
                        gathered.leave(&source.to_string(), "announcement", reason);
                        continue;
                    }
                    candidate.turn = *turn;
                    candidates.insert(key, candidate);
                }
            }
        }
    }
    elect(
        details,
        cursor,
        candidates.into_values().collect(),
        &mut gathered,
    );
    gathered
}

/// The addresses of an announcement that would be devices.
fn usable(
    details: &Details,
    announcement: &Announcement,
    uuid: &str,
    source: IpAddr,
    gathered: &mut Gathered,
) -> Vec<XAddr> {
    if uuid.is_empty() || uuid.len() > MAX_UUID || uuid.chars().any(char::is_control) {
        let reason = "has no endpoint reference of a usable length";
        gathered.leave(&source.to_string(), "announcement", reason);
        return Vec::new();
    }
    let subject = format!("{uuid} at {source}");
    if !announcement.is_onvif {
        let types = announcement.types.join(" ");
        gathered.leave(
            &subject,
            "types",
            format!("is no ONVIF device, but {types}"),
        );
        return Vec::new();
    }
    if let Err(dropped) = filter::announcement(details, uuid, &announcement.scopes) {
        gathered.dropped.insert(uuid.to_owned());
        gathered.leave(&subject, dropped.rule, dropped.reason);
        return Vec::new();
    }
    if announcement.more_xaddrs > 0 {
        let all = announcement.more_xaddrs + announcement.xaddrs.len();
        let most = wsd::MAX_XADDRS;
        gathered.leave(
            &subject,
            "XAddrs",
            format!("announces {all} addresses, {most} are looked at"),
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
                gathered.leave(&format!("{uuid} at {text}"), "XAddrs", error.to_string());
            }
        }
    }
    if announcement.xaddrs.is_empty() {
        gathered.leave(&subject, "XAddrs", "announces no address");
    }
    chosen
}

fn digest_of(announcement: &Announcement) -> u64 {
    let sorted = |list: &[String]| list.iter().cloned().collect::<BTreeSet<_>>();
    let (xaddrs, scopes) = (sorted(&announcement.xaddrs), sorted(&announcement.scopes));
    let texts = xaddrs.iter().map(String::as_str).chain([""]);
    digest(
        texts
            .chain(scopes.iter().map(String::as_str))
            .chain(["", &announcement.metadata_version]),
    )
}

/// Leaves one candidate for an address, and one for an endpoint reference and host. Who is known already comes first, then
/// who speaks for itself: nobody can take a camera's place by shouting.
fn elect(
    details: &Details,
    cursor: &Cursor,
    mut candidates: Vec<Candidate>,
    gathered: &mut Gathered,
) {
    let is_known = |candidate: &Candidate| {
        cursor
            .cameras
            .get(&candidate.xaddr.url)
            .is_some_and(|camera| camera.uuid == candidate.uuid)
    };
    candidates.sort_by_cached_key(|candidate| {
        let url = candidate.xaddr.url.clone();
        (
            !is_known(candidate),
            !candidate.is_own,
            candidate.turn,
            url,
            candidate.uuid.clone(),
        )
    });
    let mut urls: BTreeMap<String, String> = BTreeMap::new();
    let mut hosts: BTreeMap<(String, Host), String> = BTreeMap::new();
    for candidate in candidates {
        let Candidate { uuid, xaddr, .. } = &candidate;
        let place = (uuid.clone(), xaddr.host.clone());
        if let Some(other) = urls.get(&xaddr.url) {
            let reason = format!("the same address is announced for {other}");
            gathered.leave(&format!("{uuid} at {}", xaddr.url), "XAddrs", reason);
        } else if let (XAddrs::First, Some(other)) = (details.xaddrs, hosts.get(&place)) {
            let reason = format!("the same camera is announced at {other}");
            gathered.leave(&format!("{uuid} at {}", xaddr.url), "XAddrs", reason);
        } else if gathered.candidates.len() >= MAX_CAMERAS {
            let reason = format!("more than {MAX_CAMERAS} cameras are announced");
            gathered.leave(&format!("{uuid} at {}", xaddr.url), "announcement", reason);
        } else {
            urls.insert(xaddr.url.clone(), uuid.clone());
            hosts.insert(place, xaddr.url.clone());
            gathered.candidates.push(candidate);
        }
    }
    name_clones(details, &hosts, gathered);
}

/// Says where two hosts claim one endpoint reference. Both are asked, and each that answers is a device.
fn name_clones(
    details: &Details,
    hosts: &BTreeMap<(String, Host), String>,
    gathered: &mut Gathered,
) {
    if details.xaddrs == XAddrs::All {
        return;
    }
    let mut claims: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for ((uuid, _), url) in hosts {
        claims.entry(uuid).or_default().push(url);
    }
    for (uuid, urls) in claims.into_iter().filter(|(_, urls)| urls.len() > 1) {
        let reason = format!(
            "is claimed by {}; each that answers is a device of its own",
            urls.join(" and ")
        );
        gathered.leave(uuid, "endpoint reference", reason);
    }
}

#[cfg(test)]
mod tests;
