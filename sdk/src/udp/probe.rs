//! Runs a probe: every address sends by the same schedule while answers are read.

use std::cell::{Cell, RefCell};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;

use super::{Probe, Reply, Socket};
use crate::Host;
use crate::net::Error;

/// A socket is no longer read after this many failed receives in a row.
const FAILED_RECEIVES: usize = 8;

/// Bytes per kept answer, on average.
const MEAN_BYTES: usize = 2 << 10;
/// How many times more answers are read than kept.
const READ: usize = 8;
/// How many answers are read before other tasks run.
const TURN: usize = 64;
/// The largest datagram.
const LARGEST: usize = 64 << 10;

/// When, to which address, and what to send.
type Send = (Duration, SocketAddr, Vec<u8>);

/// Longest pause between two reads: a wake-up costs ten times as much as reading another answer.
const LONGEST_PAUSE: Duration = Duration::from_millis(50);
/// Longest first pause, since all may answer at once.
const FIRST_PAUSE: Duration = Duration::from_millis(2);
/// How many bytes may accumulate between reads: less than a third of Linux's default receive buffer.
const BUFFERED: usize = 128 << 10;
/// Buffer overhead per datagram.
const EACH: usize = 2 << 10;

/// What the sockets of a probe share.
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
        let mut pause = Pause::default();
        while self.kept.borrow().left > 0 && failures < FAILED_RECEIVES {
            match socket.0.take() {
                Ok(None) => {
                    if pause.gathered == 0 {
                        socket.0.arrival().await;
                    }
                    let pause = pause.next();
                    let end = self.host.imports.clock().saturating_add(pause);
                    self.host.imports.sleep_until(end.min(self.end)).await;
                    continue;
                }
                Ok(Some((payload, from))) => {
                    failures = 0;
                    pause.taken(payload.len());
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
                // With more datagrams than can be read, this loop would never wait, so neither sends nor the end of
                // the window would run.
                self.host.sleep(Duration::ZERO).await;
            }
        }
    }

    fn failed(&self, what: &str, error: Error) {
        self.host.debug(format!("probe: {what}: {error}"));
        self.last_failure.replace(Some(error));
    }
}

/// The pause between reads of one socket: the fewer answers came last time, the longer.
struct Pause {
    length: Duration,
    gathered: usize,
}

impl Default for Pause {
    fn default() -> Self {
        Self {
            length: FIRST_PAUSE / 2,
            gathered: 0,
        }
    }
}

impl Pause {
    fn taken(&mut self, bytes: usize) {
        self.gathered = self.gathered.saturating_add(bytes).saturating_add(EACH);
    }

    /// The next pause, after everything has been read.
    fn next(&mut self) -> Duration {
        self.length = if self.gathered > BUFFERED {
            self.length / 4
        } else if self.gathered > BUFFERED / 2 {
            self.length
        } else {
            (self.length * 2).clamp(FIRST_PAUSE / 2, LONGEST_PAUSE)
        };
        self.gathered = 0;
        self.length
    }
}

/// The kept answers, bounded in number and size.
struct Kept {
    replies: Vec<Reply>,
    most: usize,
    bytes: usize,
    /// How many more answers may be read.
    left: usize,
    /// Number of kept answers by sender.
    counts: Vec<(IpAddr, usize)>,
    /// The largest number of any sender.
    most_of_one: usize,
}

impl Kept {
    fn new(most: usize) -> Self {
        Self {
            replies: Vec::new(),
            most,
            bytes: 0,
            left: most.saturating_mul(READ),
            counts: Vec::new(),
            most_of_one: 0,
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
            self.remove(place);
        }
        self.push(reply);
    }

    /// An answer to replace: one of the sender with the most, if it has more than this reply's sender.
    fn index_to_replace(&mut self, reply: &Reply) -> Option<usize> {
        let own = self.count(reply.from.ip()).map_or(0, |(_, count)| *count);
        if self.most_of_one <= own + 1 {
            return None;
        }
        let loudest = self.counts.iter().max_by_key(|(_, count)| *count)?;
        self.most_of_one = loudest.1;
        let loudest = loudest.0;
        (self.most_of_one > own + 1)
            .then(|| {
                self.replies
                    .iter()
                    .rposition(|kept| kept.from.ip() == loudest)
            })
            .flatten()
    }

    fn count(&mut self, sender: IpAddr) -> Option<&mut (IpAddr, usize)> {
        let place = self.counts.binary_search_by_key(&sender, |(ip, _)| *ip);
        self.counts.get_mut(place.ok()?)
    }

    fn push(&mut self, reply: Reply) {
        let sender = reply.from.ip();
        if let Err(place) = self.counts.binary_search_by_key(&sender, |(ip, _)| *ip) {
            self.counts.insert(place, (sender, 0));
        }
        if let Some((_, count)) = self.count(sender) {
            *count += 1;
            let count = *count;
            self.most_of_one = self.most_of_one.max(count);
        }
        self.bytes = self.bytes.saturating_add(reply.payload.len());
        self.replies.push(reply);
    }

    fn remove(&mut self, place: usize) {
        let removed = self.replies.remove(place);
        self.bytes = self.bytes.saturating_sub(removed.payload.len());
        if let Some((_, count)) = self.count(removed.from.ip()) {
            *count -= 1;
        }
    }
}

/// The addresses to bind, each once, and only those that something is sent from.
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

/// The target as sent to from this local address, if it can be reached from there.
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

/// Whether the address is valid on one link only: link-local, or a group of interface or link scope.
fn needs_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || matches!(ip.segments(), [0xff01 | 0xff02, ..])
}

#[cfg(test)]
mod tests;
