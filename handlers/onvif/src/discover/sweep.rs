//! Probes the addresses of the details one by one, for cameras that multicast does not reach.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use leafhost_sdk::{Host, net, udp};

use crate::details::{Details, Target};
use crate::discover::candidates::ReceivedAnnouncement;
use crate::discover::cursor::Cursor;
use crate::discover::probe::{APP_MAX_DELAY, message_id, read};
use crate::wsd::{self, Kind};

/// Maximum number of addresses that one call probes; the next call continues.
pub const MAX_PROBED: usize = 256;
/// Pause after the datagrams to one address.
const PACE: Duration = Duration::from_millis(2);
/// Maximum number of datagrams that are read.
const MAX_READ: usize = 2_048;
/// Maximum number of bytes in the answers that are kept; others are dropped.
const MAX_BYTES: usize = MAX_READ * (2 << 10);
/// Number of datagrams read before other tasks run.
const TURN: usize = 64;
/// Maximum number of senders and addresses that are reported.
const MAX_REPORTED: usize = 16;

/// Probes the next addresses of the details and waits for `timeout` plus the delay that devices may take.
///
/// It must run after all probes to groups: the host denies these once a socket is bound to the unspecified address, unless
/// all interfaces are granted.
pub async fn sweep(
    host: &Host,
    details: &Details,
    cursor: &mut Cursor,
    timeout: Duration,
) -> Vec<ReceivedAnnouncement> {
    let items = details.targets();
    let all: Vec<(usize, SocketAddr)> = items
        .iter()
        .enumerate()
        .flat_map(|(place, item)| item.addresses().map(move |address| (place, address)))
        .collect();
    if all.is_empty() {
        return Vec::new();
    }
    let start = usize::try_from(cursor.swept).unwrap_or_default() % all.len();
    let next: Vec<(usize, SocketAddr)> = all
        .iter()
        .cycle()
        .skip(start)
        .take(all.len().min(MAX_PROBED))
        .copied()
        .collect();
    cursor.swept = u64::try_from((start + next.len()) % all.len()).unwrap_or_default();
    let ids = [message_id(host, "uuid"), message_id(host, "urn:uuid")];
    let payloads = [
        wsd::probe(Kind::NetworkVideoTransmitter, &ids[0]).into_bytes(),
        wsd::probe(Kind::Device, &ids[1]).into_bytes(),
    ];
    let mut replies = Vec::new();
    let mut failed = Vec::new();
    for unspecified in [
        IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED),
    ] {
        let is_of_family = |(_, to): &&(usize, SocketAddr)| to.is_ipv4() == unspecified.is_ipv4();
        let targets: Vec<_> = next.iter().filter(is_of_family).copied().collect();
        if targets.is_empty() {
            continue;
        }
        let socket = match host.udp(SocketAddr::new(unspecified, 0)) {
            Ok(socket) => socket,
            Err(error) => {
                host.skipped(
                    "addresses",
                    "addresses",
                    format!("cannot be probed: {error}"),
                );
                continue;
            }
        };
        let began = host.elapsed();
        let asked: Vec<SocketAddr> = targets.iter().map(|(_, to)| *to).collect();
        let mut reader = Reader {
            host,
            socket: &socket,
            asked: &asked,
            began,
            read: 0,
            bytes: 0,
            replies: Vec::new(),
            strangers: Vec::new(),
        };
        for (place, to) in targets {
            if host.time_left() < timeout.saturating_mul(2) {
                let reason = "the call has no time to probe this address and the next ones: lower discoveryTimeoutSeconds, or raise limits.wallSeconds in the grants";
                host.skipped(to.ip().to_string(), "addresses", reason);
                break;
            }
            for payload in &payloads {
                if let Err(error) = socket.send_to(payload, to).await {
                    failed.push((place, to, error));
                    break;
                }
            }
            host.within(PACE, reader.run()).await;
        }
        let window = timeout.saturating_add(APP_MAX_DELAY);
        host.within(window.min(host.time_left() / 2), reader.run())
            .await;
        for stranger in reader.strangers {
            let reason = "answers a probe that was sent to another address";
            host.skipped(stranger.to_string(), "addresses", reason);
        }
        replies.append(&mut reader.replies);
    }
    report_failures(host, &items, &failed);
    read(host, &ids, &replies)
}

/// Reader of the answers at one socket.
struct Reader<'a> {
    host: &'a Host,
    socket: &'a udp::Socket,
    asked: &'a [SocketAddr],
    began: Duration,
    read: usize,
    /// Number of bytes in the replies.
    bytes: usize,
    replies: Vec<udp::Reply>,
    /// Senders that were not asked.
    strangers: Vec<IpAddr>,
}

impl Reader<'_> {
    /// Reads answers, at most [`MAX_READ`].
    async fn run(&mut self) {
        while self.read < MAX_READ {
            let received = self.socket.receive().await;
            self.read += 1;
            let Ok((payload, from)) = received else {
                self.host.sleep(PACE).await;
                continue;
            };
            let ip = from.ip().to_canonical();
            if self.asked.iter().any(|to| to.ip() == ip) {
                let bytes = self.bytes.saturating_add(payload.len());
                if bytes <= MAX_BYTES {
                    self.bytes = bytes;
                    self.replies.push(udp::Reply {
                        from,
                        local: self.socket.local(),
                        after: self.host.elapsed().saturating_sub(self.began),
                        payload,
                    });
                }
            } else if self.strangers.len() < MAX_REPORTED && !self.strangers.contains(&ip) {
                self.strangers.push(ip);
            }
            if self.read.is_multiple_of(TURN) {
                // With more datagrams than can be read, this loop would never wait, and no time limit would end it.
                self.host.sleep(Duration::ZERO).await;
            }
        }
    }
}

/// Reports each item that could not be probed, once.
fn report_failures(host: &Host, items: &[Target], failed: &[(usize, SocketAddr, net::Error)]) {
    let mut reported = Vec::new();
    for (place, to, error) in failed {
        let Some(item) = items.get(*place) else {
            continue;
        };
        if reported.contains(place) || reported.len() >= MAX_REPORTED {
            continue;
        }
        reported.push(*place);
        let reason = match error {
            net::Error::Denied(_) => format!(
                "the grants do not allow a probe to {to}: add \"{}\" to network.udp, and \"{}\" to network.http",
                item.grant(&to.port().to_string()),
                item.grant("*")
            ),
            error => format!("cannot send a probe to {to}: {error}"),
        };
        host.skipped(item.to_string(), "addresses", reason);
    }
}
