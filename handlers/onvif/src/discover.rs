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
use crate::discover::probe::{GROUP_V4, GROUP_V6, PORT, probe, resolve};
use crate::security::credentials::Credentials;
use crate::wsd::{self, Message};

use pass::{Pass, SECOND_CHANCES};

/// How long after a probe the next one comes, as in Akri.
const INTERVAL: Duration = Duration::from_secs(10);
/// How long after a probe the next one comes that something on the network asks for.
const SOONEST: Duration = Duration::from_secs(2);
/// How late a probe may be for the sake of cameras that come and go, which would wait for its end.
const LATE: Duration = Duration::from_secs(2);
/// The actions that wake.
const ACTIONS: [&str; 2] = ["/Hello", "/Bye"];

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
    let news = News::read(&request.events);
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
        let mut heard = probe(host, request.details.timeout()).await;
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
            match wsd::read(&datagram.payload) {
                Ok(Message::Hello(announcement)) if announcement.xaddrs.is_empty() => {
                    news.is_vague |= announcement.is_onvif;
                }
                Ok(Message::Hello(announcement)) => news.hellos.push(Heard {
                    source: source.ip().to_canonical(),
                    announcement,
                }),
                Ok(Message::Bye(endpoint)) => {
                    news.byes.push(wsd::uuid(&endpoint));
                }
                Ok(_) | Err(_) => {}
            }
        }
        news
    }
}
