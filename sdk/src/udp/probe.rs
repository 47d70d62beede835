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

/// When, to whom, what.
type Send = (Duration, SocketAddr, Vec<u8>);

/// What the addresses of a probe share.
struct Course<'a> {
    host: &'a Host,
    started: Duration,
    max_replies: usize,
    replies: RefCell<Vec<Reply>>,
    sent: Cell<bool>,
    last_failure: RefCell<Option<Error>>,
}

pub(crate) async fn run(host: &Host, probe: Probe) -> Vec<Reply> {
    let from = senders(&probe);
    let course = Course {
        host,
        started: host.imports.clock(),
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
    course.replies.into_inner()
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

/// The addresses to bind: each once, and none from which nothing would be sent.
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
