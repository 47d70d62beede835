//! Runs one `discover` call: probes the network, asks the cameras that are new or due, and reports the devices.
//!
//! The timer, and any event that only a probe can resolve, start a full scan. A Hello or Bye between two scans concerns one
//! camera, and only that camera is asked.

mod camera;
mod candidates;
mod cursor;
mod devices;
mod probe;
mod scan;
mod sweep;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use leafhost_sdk::{Discovery, Event, Host, Request};

use crate::details::{Channels, Details};
use crate::discover::camera::Asker;
use crate::discover::candidates::ReceivedAnnouncement;
use crate::discover::cursor::{Cursor, Moment};
use crate::discover::probe::{ExtraWait, GROUP_V4, GROUP_V6, PORT, probe, report_silence, resolve};
use crate::security::credentials::Credentials;
use crate::soap::cut;
use crate::wsd::{self, Message};
use crate::xaddr::XAddr;

use scan::{SECOND_CHANCES, Scan};
use sweep::sweep;

/// Time from one probe to the next, as in Akri.
const INTERVAL: Duration = Duration::from_secs(10);
/// Minimum time between two probes if an event on the network calls for a probe.
const SOONEST: Duration = Duration::from_secs(2);
/// Maximum time by which a Hello or Bye, which is handled first, may delay a due probe.
const LATE: Duration = Duration::from_secs(2);
/// Maximum number of answers to the multicast group that one call reads.
const MAX_REPLIES: usize = 64;
/// Milliseconds between two scans that also wait for late answers.
const LISTENING: Moment = 15 * 60_000;
/// Maximum number of devices in an answer if channels are devices: each repeats the data of its recorder.
const MAX_CHANNELS: usize = 1_024;
/// WS-Discovery actions that wake the session.
const ACTIONS: [&str; 3] = ["/Hello", "/Bye", "/ProbeMatches"];

/// Finds the cameras on the granted networks.
pub fn discover(request: &Request<Details>, host: &Host) -> Discovery {
    host.block_on(run(request, host))
}

async fn run(request: &Request<Details>, host: &Host) -> Discovery {
    let credentials = Credentials::new(&request.properties);
    let is_changed = request.events.contains(&Event::Changed);
    if is_changed || request.events.contains(&Event::First) {
        for problem in &credentials.problems {
            host.warn(problem);
        }
        if let Some(note) = request.details.note() {
            host.warn(note);
        }
    }
    let cursor = Cursor::read(request.cursor.as_deref());
    let mut news = News::read(&request.events);
    news.take_replies(host, &cursor);
    let since_probe = Duration::from_millis(now(host).saturating_sub(cursor.probed));
    let scans_all = request.events_lost
        || cursor.sent_digest.is_none()
        || since_probe >= INTERVAL + LATE
        || request
            .events
            .iter()
            .any(|event| matches!(event, Event::First | Event::Changed | Event::Timer))
        || (news.is_vague && since_probe >= SOONEST);
    let most = usize::try_from(request.budget.devices).unwrap_or(usize::MAX);
    let mut scan = Scan {
        details: &request.details,
        asker: Asker {
            host,
            credentials: &credentials,
        },
        most: match request.details.channels {
            Channels::One => most,
            Channels::Devices => most.min(MAX_CHANNELS),
        },
        cursor,
        asks_again: is_changed,
        is_cut_short: false,
        is_bye_unconfirmed: false,
        streams_left: Cell::new(0),
        second_chances: Cell::new(SECOND_CHANCES),
        lost: 0,
        departed: Vec::new(),
    };
    let (answer, next) = if scans_all {
        scan.cursor.probed = now(host);
        let timeout = request.details.timeout();
        let since_listened = scan.cursor.probed.saturating_sub(scan.cursor.listened);
        let is_first = is_changed || request.events.contains(&Event::First);
        let extra_wait = if is_first {
            ExtraWait::IfSilent
        } else if scan.cursor.listened != 0 && since_listened >= LISTENING {
            ExtraWait::Always
        } else {
            ExtraWait::None
        };
        let (mut received, has_listened) = probe(host, timeout, extra_wait).await;
        if has_listened || scan.cursor.listened == 0 {
            scan.cursor.listened = now(host);
        }
        resolve(host, &scan.cursor, &mut received).await;
        let swept = sweep(host, &request.details, &mut scan.cursor, timeout).await;
        received.extend(swept);
        received.extend(news.hellos);
        if received.is_empty() && scan.cursor.cameras.iter().next().is_none() {
            report_silence(host);
        }
        scan.scan_all(&received, &news.byes).await;
        report_unattached(host, &request.details, &scan.cursor);
        (scan.everything(), INTERVAL)
    } else {
        let before = scan.rendered();
        scan.scan_some(&news.hellos, &news.byes).await;
        let next = if news.is_vague { SOONEST } else { INTERVAL };
        (scan.difference(&before), next)
    };
    let next = if scan.is_cut_short {
        Duration::ZERO
    } else if scan.is_bye_unconfirmed || (1..=SECOND_CHANCES).contains(&scan.lost) {
        next.min(SOONEST + Duration::from_millis(now(host).saturating_sub(scan.cursor.probed)))
    } else {
        next
    };
    let passed = Duration::from_millis(now(host).saturating_sub(scan.cursor.probed));
    let answer = scan
        .departed
        .iter()
        .fold(answer, |answer, id| answer.departed(id.as_str()));
    wakes(answer)
        .wake_after(next.saturating_sub(passed).max(Duration::from_secs(1)))
        .cursor(scan.cursor.write())
}

/// Reports addresses that `ipAddresses` includes and that no probe reaches.
fn report_unattached(host: &Host, details: &Details, cursor: &Cursor) {
    let interfaces = host.interfaces();
    let targets = details.targets();
    for ip in details.included() {
        let is_attached = interfaces
            .iter()
            .flat_map(|one| &one.addresses)
            .any(|address| address.contains(ip));
        let is_probed = targets.iter().any(|target| target.contains(ip));
        let is_known = |url: &str| XAddr::new(url).is_ok_and(|xaddr| xaddr.is_at(ip));
        if !is_attached && !is_probed && !cursor.cameras.iter().any(|(url, _)| is_known(url)) {
            host.skipped(
                ip.to_string(),
                "ipAddresses",
                "is in no network of this node, so no probe to a group reaches it; list it in `addresses` as well",
            );
        }
    }
}

/// Adds the wakes for multicast datagrams and changes of the network.
fn wakes(answer: Discovery) -> Discovery {
    let mut answer = answer.wake_on_network();
    for action in ACTIONS {
        answer = answer
            .wake_on_multicast(GROUP_V4.into(), PORT, [action])
            .wake_on_multicast(GROUP_V6.into(), PORT, [action]);
    }
    answer
}

fn now(host: &Host) -> Moment {
    u64::try_from(host.now().as_millis()).unwrap_or(Moment::MAX)
}

/// News about the network from the events of this call.
#[derive(Debug, Default)]
struct News {
    hellos: Vec<ReceivedAnnouncement>,
    /// Probe answers that a device sent to the multicast group instead of to the sender of the probe.
    replies: Vec<ReceivedAnnouncement>,
    /// Endpoint references without `urn:uuid:`.
    byes: Vec<String>,
    /// True if an event reports a change that only a probe can find.
    is_vague: bool,
}

impl News {
    fn read(events: &[Event]) -> Self {
        let mut news = Self::default();
        for event in events {
            let datagram = match event {
                Event::Network => {
                    news.is_vague = true;
                    continue;
                }
                Event::Multicast(datagram) => datagram,
                _ => continue,
            };
            let Ok(source) = datagram.source.parse::<SocketAddr>() else {
                continue;
            };
            let received = |announcement| ReceivedAnnouncement {
                source: source.ip().to_canonical(),
                announcement,
            };
            match wsd::read(&datagram.payload) {
                Ok(Message::Hello(announcement)) if announcement.xaddrs.is_empty() => {
                    news.is_vague |= announcement.is_onvif;
                }
                Ok(Message::Hello(announcement)) => news.hellos.push(received(announcement)),
                Ok(Message::Matches { matches, .. }) => {
                    news.replies.extend(matches.into_iter().map(received));
                }
                Ok(Message::Bye(endpoint)) => {
                    news.byes.push(wsd::uuid(&endpoint));
                }
                Ok(_) | Err(_) => {}
            }
        }
        news
    }

    /// Treats probe answers that a device sends to the multicast group as Hellos, because such a device does not answer the
    /// sender of the probe. Known cameras are skipped.
    fn take_replies(&mut self, host: &Host, cursor: &Cursor) {
        for reply in self.replies.drain(..).take(MAX_REPLIES) {
            let uuid = wsd::uuid(&reply.announcement.endpoint);
            let is_known = cursor.cameras.iter().any(|(_, one)| one.uuid == uuid);
            if is_known || !reply.announcement.is_onvif {
                continue;
            }
            host.skipped(
                format!("{} at {}", cut(&uuid), reply.source),
                "announcement",
                "answers probes to the group and not to the sender, so its answers count as greetings",
            );
            self.hellos.push(reply);
        }
    }
}
