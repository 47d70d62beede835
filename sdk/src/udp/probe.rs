//! Runs a probe: every address sends on the same schedule while answers are read.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;

use super::{Probe, Reply, Socket};
use crate::Host;
use crate::net::Error;

/// Number of consecutive failed receives after which a socket is no longer read.
const FAILED_RECEIVES: usize = 8;

/// Average number of bytes per kept answer.
const MEAN_BYTES: usize = 2 << 10;
/// Ratio of answers that are read to answers that are kept.
const READ: usize = 8;
/// Number of answers read before other tasks run.
const TURN: usize = 64;
/// Largest size of a datagram.
const LARGEST: usize = 64 << 10;

/// Delay, target address and payload of a datagram.
type Send = (Duration, SocketAddr, Vec<u8>);

/// Pause between an arrival and reading; a wake-up costs ten times as much as reading another answer.
const PAUSE: Duration = Duration::from_millis(10);

/// State shared by the sockets of a probe.
struct Course<'a> {
    host: &'a Host,
    started: Duration,
    end: Duration,
    kept: RefCell<Kept>,
    sent: Cell<bool>,
    last_failure: RefCell<Option<Error>>,
}

pub(crate) async fn run(host: &Host, probe: Probe) -> Vec<Reply> {
    let from = senders(&probe);
    let started = host.imports.clock();
    let course = Course {
        host,
        started,
        end: started.saturating_add(probe.window),
        kept: RefCell::new(Kept::new(probe.max_replies)),
        sent: Cell::new(false),
        last_failure: RefCell::default(),
    };
    let mut sockets = Vec::with_capacity(from.len());
    for local in from {
        match host.udp(local) {
            Ok(socket) => sockets.push(socket),
            Err(error) => course.failed(&format!("cannot bind {local}"), error),
        }
    }
    if !sockets.is_empty() {
        let work = async {
            let receives = sockets.iter().map(|socket| course.receive(socket));
            let sends = probe.sends.iter().flat_map(|send| {
                let sockets = sockets.iter();
                sockets.map(|socket| course.send(socket, send))
            });
            let mut receives: FuturesUnordered<_> = receives.collect();
            let mut sends: FuturesUnordered<_> = sends.collect();
            join(async { while receives.next().await.is_some() {} }, async {
                while sends.next().await.is_some() {}
            })
            .await;
            std::future::pending::<()>().await;
        };
        host.within(probe.window, work).await;
    }
    if let (false, Some(error)) = (course.sent.get(), course.last_failure.take()) {
        host.warn(format!("no probe could be sent: {error}"));
    }
    course.kept.into_inner().replies
}

impl Course<'_> {
    async fn send(&self, socket: &Socket, (after, to, payload): &Send) {
        let local = socket.local();
        let Some(to) = target(local, *to) else {
            return;
        };
        let due = self.started.saturating_add(*after);
        self.host.imports.sleep_until(due).await;
        match socket.send_to(payload, to).await {
            Ok(()) => self.sent.set(true),
            Err(error) => self.failed(&format!("cannot send from {local} to {to}"), error),
        }
    }

    async fn receive(&self, socket: &Socket) {
        let local = socket.local();
        let mut failures = 0;
        let mut turn = 0;
        while self.kept.borrow().left > 0 && failures < FAILED_RECEIVES {
            match socket.0.take() {
                Ok(None) => {
                    socket.0.arrival().await;
                    let end = self.host.imports.clock().saturating_add(PAUSE);
                    self.host.imports.sleep_until(end.min(self.end)).await;
                    continue;
                }
                Ok(Some((payload, from))) => {
                    failures = 0;
                    self.kept.borrow_mut().take(Reply {
                        from,
                        local,
                        after: self.host.imports.clock().saturating_sub(self.started),
                        payload,
                    });
                }
                Err(error) => {
                    failures += 1;
                    self.host
                        .debug(format!("probe: cannot receive at {local}: {error}"));
                }
            }
            turn += 1;
            if turn % TURN == 0 {
                // With more datagrams than can be read, this loop would never wait, and neither sends nor the end of the
                // window would run.
                self.host.sleep(Duration::ZERO).await;
            }
        }
    }

    fn failed(&self, what: &str, error: Error) {
        self.host.debug(format!("probe: {what}: {error}"));
        self.last_failure.replace(Some(error));
    }
}

/// Kept answers, bounded in number and size.
struct Kept {
    replies: Vec<Reply>,
    most: usize,
    bytes: usize,
    /// Number of answers that may still be read.
    left: usize,
    /// Number of kept answers by sender.
    counts: BTreeMap<IpAddr, usize>,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self {
            replies: Vec::new(),
            most,
            bytes: 0,
            left: most.saturating_mul(READ),
            counts: BTreeMap::new(),
        }
    }

    fn fits(&self, reply: &Reply) -> bool {
        let bytes = self.bytes.saturating_add(reply.payload.len());
        let most = self.most.saturating_mul(MEAN_BYTES).max(LARGEST);
        self.replies.len() < self.most && bytes <= most
    }

    fn take(&mut self, reply: Reply) {
        self.left = self.left.saturating_sub(1);
        while !self.fits(&reply) {
            let Some(place) = self.index_to_replace(&reply) else {
                return;
            };
            let removed = self.replies.remove(place);
            self.bytes = self.bytes.saturating_sub(removed.payload.len());
            let sender = removed.from.ip();
            match self.counts.get_mut(&sender) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(self.counts.remove(&sender)),
            }
        }
        self.bytes = self.bytes.saturating_add(reply.payload.len());
        *self.counts.entry(reply.from.ip()).or_default() += 1;
        self.replies.push(reply);
    }

    /// Returns the index of an answer to replace: one of the sender with the most, if it has more than this reply's sender.
    fn index_to_replace(&self, reply: &Reply) -> Option<usize> {
        // Common in a flood with forged senders: each sender has one answer.
        if self.counts.len() == self.replies.len() {
            return None;
        }
        let own = self.counts.get(&reply.from.ip()).map_or(0, |count| *count);
        let (loudest, most) = self.counts.iter().max_by_key(|(_, count)| **count)?;
        if *most <= own + 1 {
            return None;
        }
        let mut replies = self.replies.iter();
        replies.rposition(|kept| kept.from.ip() == *loudest)
    }
}

/// Returns the addresses to bind: those that send something, each once.
fn senders(probe: &Probe) -> Vec<SocketAddr> {
    let unspecified = [
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
        SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
    ];
    let from = if probe.from.is_empty() {
        &unspecified[..]
    } else {
        &probe.from
    };
    let mut senders = Vec::with_capacity(from.len());
    for local in from {
        let mut sends = probe.sends.iter();
        if !senders.contains(local) && sends.any(|(_, to, _)| target(*local, *to).is_some()) {
            senders.push(*local);
        }
    }
    senders
}

/// Returns the target with the scope of `local`, or `None` if it cannot be reached from there.
fn target(local: SocketAddr, to: SocketAddr) -> Option<SocketAddr> {
    match (local, to) {
        (SocketAddr::V4(_), SocketAddr::V4(_)) => Some(to),
        (SocketAddr::V6(local), SocketAddr::V6(mut to)) => {
            let scope = local.scope_id();
            if to.scope_id() == 0 && needs_scope(*to.ip()) {
                to.set_scope_id(scope);
            }
            let elsewhere = scope != 0 && to.scope_id() != 0 && to.scope_id() != scope;
            (!elsewhere).then_some(SocketAddr::V6(to))
        }
        _ => None,
    }
}

/// Returns true if the address is valid on one link only: link-local, or a group of interface or link scope.
fn needs_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || matches!(ip.segments(), [0xff01 | 0xff02, ..])
}

#[cfg(test)]
mod tests;
