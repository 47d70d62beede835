//! One call: hears who is there, asks whom it does not know, and answers with what changed.
//!
//! Everything is looked at when the timer comes, and when something happened that cannot be looked at alone. A camera that
//! greets or takes its leave in between is looked at alone.

mod camera;
mod cursor;
mod devices;
mod gather;
mod pass;
mod probe;

use std::cell::Cell;
use std::net::SocketAddr;
use std::time::Duration;

use leafhost_sdk::{Discovery, Event, Host, Request};

use crate::details::Details;
use crate::discover::camera::Asker;
use crate::discover::cursor::{Cursor, Moment};
use crate::discover::gather::Heard;
use crate::discover::probe::{GROUP_V4, GROUP_V6, PORT, Patience, probe, resolve};
use crate::security::credentials::Credentials;
use crate::soap::cut;
use crate::wsd::{self, Message};

use pass::{Pass, SECOND_CHANCES};

/// How long after a probe the next one comes, as in Akri.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long after a probe the next one comes that something on the network asks for.
const SOONEST: Duration = Duration::from_secs(2);
/// How late a probe may be for the sake of cameras that come and go, which would wait for its end.
const LATE: Duration = Duration::from_secs(2);
/// How many answers to the group are looked at in one call.
const MAX_REPLIES: usize = 64;
/// How many milliseconds after it was seen who answers probes late that is seen again.
const LISTENING: Moment = 15 * 60_000;
/// The actions that wake.
const ACTIONS: [&str; 3] = ["/Hello", "/Bye", "/ProbeMatches"];

/// Looks for cameras.
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
    let looks_at_everything = request.events_lost
        || cursor.told.is_none()
        || since_probe >= INTERVAL + LATE
        || request
            .events
            .iter()
            .any(|event| matches!(event, Event::First | Event::Changed | Event::Timer))
        || (news.is_vague && since_probe >= SOONEST);
    let mut pass = Pass {
        details: &request.details,
        asker: Asker {
            host,
            credentials: &credentials,
        },
        most: usize::try_from(request.budget.devices).unwrap_or(usize::MAX),
        cursor,
        asks_again: is_changed,
        is_cut_short: false,
        is_in_doubt: false,
        second_chances: Cell::new(SECOND_CHANCES),
        lost: 0,
        departed: Vec::new(),
    };
    let (answer, next) = if looks_at_everything {
        pass.cursor.probed = now(host);
        let timeout = request.details.timeout();
        let since_listened = pass.cursor.probed.saturating_sub(pass.cursor.listened);
        let is_first = is_changed || request.events.contains(&Event::First);
        let patience = if is_first {
            Patience::IfSilent
        } else if pass.cursor.listened != 0 && since_listened >= LISTENING {
            Patience::Full
        } else {
            Patience::None
        };
        let (mut heard, has_listened) = probe(host, timeout, patience).await;
        if has_listened || pass.cursor.listened == 0 {
            pass.cursor.listened = now(host);
        }
        resolve(host, &pass.cursor, &mut heard).await;
        heard.extend(news.hellos);
        pass.look_at_everything(&heard, &news.byes).await;
        (pass.everything(), INTERVAL)
    } else {
        let before = pass.rendered();
        pass.look_at(&news.hellos, &news.byes).await;
        let next = if news.is_vague { SOONEST } else { INTERVAL };
        (pass.difference(&before), next)
    };
    let next = if pass.is_cut_short {
        Duration::ZERO
    } else if pass.is_in_doubt || (1..=SECOND_CHANCES).contains(&pass.lost) {
        next.min(SOONEST + Duration::from_millis(now(host).saturating_sub(pass.cursor.probed)))
    } else {
        next
    };
    let passed = Duration::from_millis(now(host).saturating_sub(pass.cursor.probed));
    let answer = pass
        .departed
        .iter()
        .fold(answer, |answer, id| answer.departed(id.as_str()));
    wakes(answer)
        .wake_after(next.saturating_sub(passed).max(Duration::from_secs(1)))
        .cursor(pass.cursor.write())
}

/// A group's datagrams wake, and so does a change of the network.
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

/// What happened on the network.
#[derive(Debug, Default)]
struct News {
    hellos: Vec<Heard>,
    /// Answers to probes, which are for who asked and not for the group.
    replies: Vec<Heard>,
    /// Endpoint references without `urn:uuid:`.
    byes: Vec<String>,
    /// Whether something happened that only a probe can tell more of.
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
            let heard = |announcement| Heard {
                source: source.ip().to_canonical(),
                announcement,
            };
            match wsd::read(&datagram.payload) {
                Ok(Message::Hello(announcement)) if announcement.xaddrs.is_empty() => {
                    news.is_vague |= announcement.is_onvif;
                }
                Ok(Message::Hello(announcement)) => news.hellos.push(heard(announcement)),
                Ok(Message::Matches { matches, .. }) => {
                    news.replies.extend(matches.into_iter().map(heard));
                }
                Ok(Message::Bye(endpoint)) => {
                    news.byes.push(wsd::uuid(&endpoint));
                }
                Ok(_) | Err(_) => {}
            }
        }
        news
    }

    /// Takes answers that devices send to the group for greetings: they do not send them to who asks. Known cameras are left
    /// alone.
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
                "answers probes to the group and not to who asks, which is taken for a greeting",
            );
            self.hellos.push(reply);
        }
    }
}
