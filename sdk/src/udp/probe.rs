//! The course of a probe: every address sends by the same schedule and reads all the while.

use std::cell::{Cell, RefCell};
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join;
use futures_util::stream::FuturesUnordered;

use super::{Probe, Reply, Socket};
use crate::Host;
use crate::net::Error;

/// How many failed receives in a row end the reading of a socket.
const FAILED_RECEIVES: usize = 8;

/// What the addresses of a probe share.
struct Course<'a> {
    host: &'a Host,
    started: Duration,
    /// In the order of time.
    sends: Vec<(Duration, SocketAddr, Vec<u8>)>,
    max_replies: usize,
    replies: RefCell<Vec<Reply>>,
    sent: Cell<bool>,
    last_failure: RefCell<Option<Error>>,
}

pub(crate) async fn run(host: &Host, probe: Probe) -> Vec<Reply> {
    let from = senders(&probe);
    let mut sends = probe.sends;
    sends.sort_by_key(|(after, ..)| *after);
    let course = Course {
        host,
        started: host.imports.clock(),
        sends,
        max_replies: probe.max_replies,
        replies: RefCell::default(),
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
            let served = sockets.iter().map(|socket| course.serve(socket));
            let mut served: FuturesUnordered<_> = served.collect();
            while served.next().await.is_some() {}
            std::future::pending::<()>().await;
        };
        host.within(probe.window, work).await;
    }
    if let (false, Some(error)) = (course.sent.get(), course.last_failure.take()) {
        host.warn(format!("no probe could be sent: {error}"));
    }
    course.replies.into_inner()
}

impl Course<'_> {
    async fn serve(&self, socket: &Socket) {
        join(self.send(socket), self.receive(socket)).await;
    }

    async fn send(&self, socket: &Socket) {
        let local = socket.local();
        for (after, to, payload) in &self.sends {
            let Some(to) = target(local, *to) else {
                continue;
            };
            let due = self.started.saturating_add(*after);
            self.host.imports.sleep_until(due).await;
            match socket.send_to(payload, to).await {
                Ok(()) => self.sent.set(true),
                Err(error) => self.failed(&format!("cannot send from {local} to {to}"), error),
            }
        }
    }

    async fn receive(&self, socket: &Socket) {
        let local = socket.local();
        let mut failures = 0;
        while self.replies.borrow().len() < self.max_replies && failures < FAILED_RECEIVES {
            match socket.receive().await {
                Ok((payload, from)) => {
                    failures = 0;
                    let mut replies = self.replies.borrow_mut();
                    if replies.len() < self.max_replies {
                        replies.push(Reply {
                            from,
                            local,
                            payload,
                        });
                    }
                }
                Err(error) => {
                    failures += 1;
                    self.host
                        .debug(format!("probe: cannot receive at {local}: {error}"));
                }
            }
        }
    }

    fn failed(&self, what: &str, error: Error) {
        self.host.debug(format!("probe: {what}: {error}"));
        self.last_failure.replace(Some(error));
    }
}

/// The addresses to bind, each once.
fn senders(probe: &Probe) -> Vec<SocketAddr> {
    let mut from = Vec::new();
    if probe.from.is_empty() {
        for (_, to, _) in &probe.sends {
            let any = match to {
                SocketAddr::V4(_) => SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
                SocketAddr::V6(_) => SocketAddr::from((Ipv6Addr::UNSPECIFIED, 0)),
            };
            if !from.contains(&any) {
                from.push(any);
            }
        }
    } else {
        for local in &probe.from {
            if !from.contains(local) {
                from.push(*local);
            }
        }
    }
    from
}

/// The address to send to from this one, if it is one to send to from there.
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

/// Whether the address means something on one link only: link-local, or a group of interface or link scope.
fn needs_scope(ip: Ipv6Addr) -> bool {
    ip.is_unicast_link_local() || matches!(ip.segments(), [0xff01 | 0xff02, ..])
}

#[cfg(test)]
mod tests;
