//! Sends WS-Discovery probes on the granted networks and collects the answers.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use leafhost_sdk::{Host, net, udp};

use crate::discover::candidates::{MAX_UUID, ReceivedAnnouncement};
use crate::discover::cursor::Cursor;
use crate::soap::cut;
use crate::wsd::{self, Announcement, Kind, Message};

/// WS-Discovery's IPv4 multicast group.
pub const GROUP_V4: Ipv4Addr = Ipv4Addr::new(239, 255, 255, 250);
/// WS-Discovery's link-local IPv6 multicast group.
pub const GROUP_V6: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0xc);
/// Port of WS-Discovery.
pub const PORT: u16 = 3702;

/// Maximum delay of a device before it answers (WS-Discovery 2005/04, appendix I).
pub const APP_MAX_DELAY: Duration = Duration::from_millis(500);
/// Time from the first probe to the second.
const SECOND_PROBE: Duration = Duration::from_millis(100);
/// Maximum number of devices without an announced address that one call resolves.
const MAX_RESOLVED: usize = 16;
/// Maximum number of announcements without an address that are considered.
const MAX_WITHOUT_ADDRESS: usize = 256;
/// Time to wait for the answers to Resolve.
const RESOLVING: Duration = Duration::from_millis(750);
/// Maximum number of answers that are read.
const MAX_REPLIES: usize = 4_096;
/// Maximum number of unreadable answers that are reported.
const MAX_UNREAD: usize = 64;
/// Maximum number of local addresses that send probes.
const MAX_LOCALS: usize = 32;

/// Additional time to wait if late answers are wanted.
const LATE: Duration = Duration::from_millis(2_500);
/// Maximum number of late answers that are read.
const MAX_LATE: usize = 64;
/// Tolerance between an answer's arrival and its reading.
const READ_DELAY: Duration = Duration::from_millis(100);

/// Rule for waiting longer than the details say, to report devices that answer late.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtraWait {
    /// Do not wait longer.
    None,
    /// Wait longer only if nothing answered in time, so that no other camera is delayed.
    IfSilent,
    /// Wait longer.
    Always,
}

/// Probes and waits for `timeout` plus the delay that devices may take, and longer according to `extra_wait`. The flag is
/// true if it waited longer.
pub async fn probe(
    host: &Host,
    timeout: Duration,
    extra_wait: ExtraWait,
) -> (Vec<ReceivedAnnouncement>, bool) {
    let from = locals(&host.interfaces());
    if from.is_empty() {
        host.skipped(
            "network",
            "network.interfaces",
            "no granted interface is up and has an address to probe from",
        );
        return (Vec::new(), false);
    }
    let received = ask(host, &from, timeout, extra_wait == ExtraWait::Always).await;
    if received.is_empty() && extra_wait == ExtraWait::IfSilent {
        return (ask(host, &from, timeout, true).await, true);
    }
    (received, extra_wait == ExtraWait::Always)
}

/// Reports that no device answered, and on which interfaces the probes were sent.
pub fn report_silence(host: &Host) {
    let interfaces = host.interfaces();
    let has_local = |one: &&net::NetworkInterface| !locals(std::slice::from_ref(*one)).is_empty();
    let asked: Vec<&str> = interfaces
        .iter()
        .filter(has_local)
        .map(|one| one.name.as_str())
        .collect();
    if !asked.is_empty() {
        let reason = format!("no camera answered on {}", cut(&asked.join(" and ")));
        host.skipped("network", "network.interfaces", reason);
    }
}

async fn ask(
    host: &Host,
    from: &[SocketAddr],
    timeout: Duration,
    waits_longer: bool,
) -> Vec<ReceivedAnnouncement> {
    // Some devices accept only the `uuid:` form of 2005, which Akri uses, and some only today's `urn:uuid:`.
    let ids = [message_id(host, "uuid"), message_id(host, "urn:uuid")];
    let mut sends = Vec::new();
    for (kind, id, start) in [
        (Kind::NetworkVideoTransmitter, &ids[0], Duration::ZERO),
        (Kind::Device, &ids[1], SECOND_PROBE),
    ] {
        let payload = wsd::probe(kind, id).into_bytes();
        let again = start.saturating_add(repeat_delay(host));
        for group in [IpAddr::V4(GROUP_V4), IpAddr::V6(GROUP_V6)] {
            if from.iter().any(|local| local.is_ipv4() == group.is_ipv4()) {
                sends.push((start, SocketAddr::new(group, PORT), payload.clone()));
                sends.push((again, SocketAddr::new(group, PORT), payload.clone()));
            }
        }
    }
    let window = timeout.saturating_add(APP_MAX_DELAY);
    let late = if waits_longer { LATE } else { Duration::ZERO };
    let mut replies = host
        .probe(udp::Probe {
            from: from.to_vec(),
            sends,
            window: window.saturating_add(late).min(host.time_left() / 2),
            max_replies: MAX_REPLIES,
        })
        .await;
    let is_late = |reply: &udp::Reply| reply.after > window + READ_DELAY;
    replies.sort_by_key(is_late);
    let late = replies.split_off(replies.partition_point(|reply| !is_late(reply)));
    let mut received = read(host, &ids, &replies);
    for reply in late.iter().take(MAX_LATE) {
        for one in read(host, &ids, std::slice::from_ref(reply)) {
            if !received.contains(&one) {
                report_late(host, &one, reply.after, timeout);
                received.push(one);
            }
        }
    }
    received
}

fn report_late(host: &Host, one: &ReceivedAnnouncement, after: Duration, timeout: Duration) {
    let uuid = wsd::uuid(&one.announcement.endpoint);
    let seconds = after.as_secs_f64();
    let enough = after.as_secs() + 1;
    host.skipped(
        format!("{} at {}", cut(&uuid), one.source),
        "discoveryTimeoutSeconds",
        format!(
            "answers a probe after {seconds:.1} s, and the handler usually waits only {} s; set {enough}",
            timeout.as_secs(),
        ),
    );
}

/// Sends Resolve for devices that announced no address, and replaces their announcements with the answers. Known devices are
/// not resolved: they are asked at their known address.
pub async fn resolve(host: &Host, cursor: &Cursor, received: &mut Vec<ReceivedAnnouncement>) {
    let is_known = |uuid: &str| cursor.cameras.iter().any(|(_, camera)| camera.uuid == uuid);
    let mut without_address: Vec<(String, ReceivedAnnouncement)> = Vec::new();
    let mut looked_at = 0;
    received.retain(|one| {
        let Announcement {
            endpoint,
            is_onvif,
            xaddrs,
            ..
        } = &one.announcement;
        let uuid = wsd::uuid(endpoint);
        let is_of_use = *is_onvif && !uuid.is_empty() && uuid.len() <= MAX_UUID;
        if !is_of_use || !xaddrs.is_empty() || looked_at >= MAX_WITHOUT_ADDRESS {
            return true;
        }
        looked_at += 1;
        let is_asked = without_address.iter().any(|(other, _)| *other == uuid);
        if !is_asked && !is_known(&uuid) {
            without_address.push((uuid, one.clone()));
        }
        false
    });
    let asked = without_address.len().min(MAX_RESOLVED);
    let left = without_address.split_off(asked);
    if asked > 0 {
        let ids: Vec<String> = without_address
            .iter()
            .map(|_| message_id(host, "urn:uuid"))
            .collect();
        let again = repeat_delay(host);
        let mut sends = Vec::new();
        for ((_, one), id) in without_address.iter().zip(&ids) {
            let payload = wsd::resolve(&one.announcement.endpoint, id).into_bytes();
            for group in [IpAddr::V4(GROUP_V4), IpAddr::V6(GROUP_V6)] {
                for start in [Duration::ZERO, again] {
                    sends.push((start, SocketAddr::new(group, PORT), payload.clone()));
                }
            }
        }
        let probe = udp::Probe {
            from: locals(&host.interfaces()),
            sends,
            window: RESOLVING.min(host.time_left() / 2),
            max_replies: MAX_REPLIES,
        };
        let found = read(host, &ids, &host.probe(probe).await);
        for one in found {
            let uuid = wsd::uuid(&one.announcement.endpoint);
            let place = without_address.iter().position(|(other, _)| *other == uuid);
            if one.announcement.xaddrs.is_empty() {
                continue;
            }
            if let Some((_, before)) = place.map(|place| without_address.swap_remove(place)) {
                received.push(one.with(before.announcement));
            } else {
                received.push(one);
            }
        }
    }
    received.extend(without_address.into_iter().chain(left).map(|(_, one)| one));
}

/// Returns the first IPv4 address in each network of each interface, and its first link-local IPv6 address.
fn locals(interfaces: &[net::NetworkInterface]) -> Vec<SocketAddr> {
    let mut locals = Vec::new();
    for interface in interfaces {
        let mut has_v6 = false;
        for (index, address) in interface.addresses.iter().enumerate() {
            let mut before = interface.addresses.iter().take(index);
            match address.ip {
                IpAddr::V4(ip) => {
                    if !before.any(|other| other.contains(address.ip)) {
                        locals.push(SocketAddr::new(ip.into(), 0));
                    }
                }
                IpAddr::V6(ip) if ip.is_unicast_link_local() && !has_v6 => {
                    has_v6 = true;
                    locals.push(SocketAddrV6::new(ip, 0, 0, interface.index).into());
                }
                IpAddr::V6(_) => {}
            }
        }
    }
    locals.truncate(MAX_LOCALS);
    locals
}

/// Returns the delay of the repetition: 50 to 250 ms (SOAP-over-UDP 1.1, appendix A).
fn repeat_delay(host: &Host) -> Duration {
    Duration::from_millis(50 + host.random() % 200)
}

/// Returns a random message id (RFC 9562, version 4).
pub fn message_id(host: &Host, scheme: &str) -> String {
    let (high, low) = (host.random(), host.random());
    format!(
        "{scheme}:{:08x}-{:04x}-4{:03x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xfff,
        0x8000 | ((low >> 48) & 0x3fff),
        low & 0xffff_ffff_ffff
    )
}

/// Reads the answers to the probes with these ids; reports those that cannot be read.
pub fn read(host: &Host, ids: &[String], replies: &[udp::Reply]) -> Vec<ReceivedAnnouncement> {
    let mut received = Vec::new();
    let mut bodies = HashSet::new();
    let mut unread: Vec<(IpAddr, String)> = Vec::new();
    for reply in replies {
        let source = reply.from.ip().to_canonical();
        // A device answers each probe and each repetition; only the headers differ.
        if !bodies.insert((source, body(&reply.payload))) {
            continue;
        }
        let trouble =
            match wsd::read(&reply.payload) {
                Ok(Message::Matches {
                    relates_to,
                    message_id,
                    matches,
                }) => {
                    if wsd::answers(&relates_to, &message_id, ids) {
                        received.extend(matches.into_iter().map(|announcement| {
                            ReceivedAnnouncement {
                                source,
                                announcement,
                            }
                        }));
                        continue;
                    }
                    "is an answer to a probe that the handler did not send".to_owned()
                }
                Ok(Message::Other(name)) => format!("answers the probe with {name:?}"),
                Ok(_) => "answers the probe with a greeting or farewell".to_owned(),
                Err(error) => format!("answers the probe with an unreadable message: {error}"),
            };
        let trouble = (source, trouble);
        if unread.len() < MAX_UNREAD && !unread.contains(&trouble) {
            host.skipped(source.to_string(), "announcement", &trouble.1);
            unread.push(trouble);
        }
    }
    received
}

/// Returns the payload from the first `Body` on.
fn body(payload: &[u8]) -> &[u8] {
    let at = payload.windows(4).position(|word| word == b"Body");
    payload.get(at.unwrap_or(0)..).unwrap_or_default()
}
