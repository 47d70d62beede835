//! From what was heard on the network to the cameras to ask: filtered, without doubles, bounded. Asks nobody.

use std::collections::BTreeMap;
use std::net::IpAddr;

use crate::details::{Details, Identity, XAddrs};
use crate::discover::cursor::{Claim, Cursor, digest};
use crate::filter;
use crate::soap::cut;
use crate::wsd::{self, Announcement};
use crate::xaddr::{self, XAddr};

/// How many cameras of one call are looked at.
pub const MAX_CAMERAS: usize = 1_000;
/// How many cameras one address may announce; recorders and gateways have one for each channel.
const MAX_PER_SOURCE: usize = 512;
/// The longest endpoint reference, in bytes.
pub const MAX_UUID: usize = 128;

/// Somebody said this.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Heard {
    /// The sender's address. Nobody has authenticated it.
    pub source: IpAddr,
    /// What.
    pub announcement: Announcement,
}

impl Heard {
    /// What was said here, and what was said before of what is not said here.
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

/// A camera to ask.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Candidate {
    /// The endpoint reference, without `urn:uuid:`.
    pub uuid: String,
    /// Where.
    pub xaddr: XAddr,
    /// Whether it was announced from that very address.
    pub is_own: bool,
    /// The same, and whether it is the only one.
    pub claim: Claim,
    /// The scopes.
    pub scopes: Vec<String>,
    /// What was announced, as a digest.
    pub announced: u64,
    /// The same camera at the announced address that the announcement came from: for where the chosen one cannot be used.
    pub instead: Option<Box<Candidate>>,
    /// The how many'th of its source this is.
    turn: usize,
}

/// Something that was heard and is not asked.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    pub left_out: Vec<LeftOut>,
    /// Endpoint references that a filter of the announcement dropped, and who announced them.
    pub dropped: Vec<(String, IpAddr)>,
    said: Index,
}

/// Places in a list by a text. The one kind of map here: each kind costs a component some kilobytes.
type Index = BTreeMap<String, usize>;

impl Gathered {
    /// Names it, unless it is named already or too many are.
    fn leave(&mut self, subject: &str, rule: &'static str, reason: impl Into<String>) -> bool {
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

/// Sorts out what was heard.
pub fn gather(details: &Details, cursor: &Cursor, heard: &[Heard]) -> Gathered {
    let mut gathered = Gathered::default();
    let mut candidates: Vec<Candidate> = Vec::new();
    let mut places = Index::new();
    let mut turns = Index::new();
    for Heard {
        source,
        announcement,
    } in heard
    {
        let uuid = wsd::uuid(&announcement.endpoint);
        for xaddr in usable(details, announcement, &uuid, *source, &mut gathered) {
            let at = |xaddr: XAddr| Candidate {
                uuid: uuid.clone(),
                is_own: xaddr.is_at(*source),
                claim: Claim::Foreign,
                scopes: announcement.scopes.clone(),
                announced: digest_of(announcement),
                instead: None,
                turn: 0,
                xaddr,
            };
            let instead = own_address(details, announcement, *source).map(at);
            let mut candidate = at(xaddr);
            if let Some(instead) = instead.filter(|_| !candidate.is_own) {
                let is_known = |one: &Candidate| {
                    let known = cursor.cameras.get(&one.xaddr.url);
                    known.is_some_and(|camera| camera.uuid == uuid)
                };
                // An address that was chosen once stays chosen: it is part of the device's id.
                match (is_known(&candidate), is_known(&instead)) {
                    (true, _) => {}
                    (false, true) => candidate = instead,
                    (false, false) => candidate.instead = Some(Box::new(instead)),
                }
            }
            let key = format!("{} {uuid}", candidate.xaddr.url);
            let known = places
                .get(&key)
                .and_then(|place| candidates.get_mut(*place));
            if let Some(known) = known {
                // What a camera says of itself counts more than what others say of it.
                let rank = |one: &Candidate| (!one.is_own, one.instead.is_none(), one.announced);
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
                gathered.leave(&source.to_string(), "announcement", reason);
                continue;
            }
            candidate.turn = *turn;
            places.insert(key, candidates.len());
            candidates.push(candidate);
        }
    }
    elect(details, cursor, candidates, &mut gathered);
    weigh(details, cursor, &mut gathered.candidates);
    if details.identity == Identity::EndpointReference {
        keep_known(cursor, &mut gathered);
    }
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
    let subject = || format!("{uuid} at {source}");
    if !announcement.is_onvif {
        let types = cut(&announcement.types.join(" "));
        gathered.leave(
            &subject(),
            "types",
            format!("is no ONVIF device, but {types}"),
        );
        return Vec::new();
    }
    if let Err(dropped) = filter::announcement(details, uuid, &announcement.scopes) {
        if gathered.leave(&subject(), dropped.rule, dropped.reason) {
            gathered.dropped.push((uuid.to_owned(), source));
        }
        return Vec::new();
    }
    if announcement.more_xaddrs > 0 {
        let all = announcement.more_xaddrs + announcement.xaddrs.len();
        let most = wsd::MAX_XADDRS;
        gathered.leave(
            &subject(),
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
                gathered.leave(
                    &format!("{uuid} at {}", cut(text)),
                    "XAddrs",
                    error.to_string(),
                );
            }
        }
    }
    if announcement.xaddrs.is_empty() {
        let reason = "announces no address, nor tells one when it is asked for it";
        gathered.leave(&subject(), "XAddrs", reason);
    }
    chosen
}

/// Of the addresses of an announcement the one it came from, where one address stands for the camera.
fn own_address(details: &Details, announcement: &Announcement, source: IpAddr) -> Option<XAddr> {
    let is_first = details.xaddrs == XAddrs::First;
    is_first
        .then(|| xaddr::choose_at(&announcement.xaddrs, source))
        .flatten()
}

/// The order in which a camera names its addresses and scopes makes no difference.
fn digest_of(announcement: &Announcement) -> u64 {
    let of = |kind, list: &[String]| {
        let digests = list.iter().map(|text| digest([kind, text.as_str()]));
        digests.fold(0, u64::wrapping_add)
    };
    digest([announcement.metadata_version.as_str()])
        .wrapping_add(of("xaddr", &announcement.xaddrs))
        .wrapping_add(of("scope", &announcement.scopes))
}

/// The candidate, or what may be asked instead of it, at the address that the announcement came from.
fn own(candidate: &mut Candidate) -> Option<&mut Candidate> {
    if candidate.is_own {
        return Some(candidate);
    }
    candidate.instead.as_deref_mut()
}

/// Weighs who speaks for itself: a host that claims to be the camera that another one claims to be as well is not believed,
/// unless it was believed before the other one came.
///
/// Where a device is its endpoint reference, who has it now is believed at once: a camera that does not announce itself has
/// gone elsewhere.
fn weigh(details: &Details, cursor: &Cursor, candidates: &mut [Candidate]) {
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

/// Leaves one candidate for an address, and one for an endpoint reference and host. Who speaks for itself comes first, then
/// who is known already, then each source in turn: nobody can take a camera's place by shouting.
fn elect(details: &Details, cursor: &Cursor, candidates: Vec<Candidate>, gathered: &mut Gathered) {
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
            && let Some(instead) = candidate.instead.take()
        {
            candidate = *instead;
        }
        let Candidate { uuid, xaddr, .. } = &candidate;
        let subject = || format!("{uuid} at {}", xaddr.url);
        let host = format!("{uuid} {}", xaddr.host);
        let other = |index: &Index, key: &str| {
            index
                .get(key)
                .and_then(|place| gathered.candidates.get(*place))
        };
        if let Some(other) = other(&urls, &xaddr.url) {
            let reason = format!("the same address is announced for {}", other.uuid);
            gathered.leave(&subject(), "XAddrs", reason);
        } else if let (XAddrs::First, Some(other)) = (details.xaddrs, other(&hosts, &host)) {
            let reason = format!("the same camera is announced at {}", other.xaddr.url);
            gathered.leave(&subject(), "XAddrs", reason);
        } else if gathered.candidates.len() >= MAX_CAMERAS {
            let reason = format!("more than {MAX_CAMERAS} cameras are announced");
            gathered.leave(&subject(), "announcement", reason);
        } else {
            urls.insert(xaddr.url.clone(), gathered.candidates.len());
            hosts.insert(host, gathered.candidates.len());
            gathered.candidates.push(candidate);
        }
    }
    if details.xaddrs == XAddrs::First {
        name_clones(details, &hosts, gathered);
    }
}

/// Leaves out who claims to be a camera that is known and announces itself, where a camera is one device.
fn keep_known(cursor: &Cursor, gathered: &mut Gathered) {
    let is_known = |one: &Candidate| {
        let known = cursor.cameras.get(&one.xaddr.url);
        known.is_some_and(|camera| camera.is_here() && camera.uuid == one.uuid)
    };
    let mut known = Index::new();
    for (place, candidate) in gathered.candidates.iter().enumerate() {
        if is_known(candidate) {
            known.insert(candidate.uuid.clone(), place);
        }
    }
    let candidates = std::mem::take(&mut gathered.candidates);
    let (kept, others): (Vec<_>, Vec<_>) = candidates
        .into_iter()
        .partition(|one| is_known(one) || !known.contains_key(&one.uuid));
    gathered.candidates = kept;
    for Candidate { uuid, xaddr, .. } in others {
        let reason = "another host that is known is this camera, and announces itself";
        gathered.leave(
            &format!("{uuid} at {}", xaddr.url),
            "endpoint reference",
            reason,
        );
    }
}

/// Says where two hosts claim one endpoint reference. Both are asked, and each that answers is a device. The hosts come
/// sorted by endpoint reference.
fn name_clones(details: &Details, hosts: &Index, gathered: &mut Gathered) {
    let mut claims: Vec<(String, Vec<String>)> = Vec::new();
    for place in hosts.values() {
        let Some(Candidate { uuid, xaddr, .. }) = gathered.candidates.get(*place) else {
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
            Identity::EndpointReference => "the one that was there first is the device",
        };
        let reason = format!("is claimed by {}; {what}", urls.join(" and "));
        gathered.leave(&uuid, "endpoint reference", reason);
    }
}

#[cfg(test)]
mod tests;
