//! Fake UDP peers, and the sockets that talk to them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::future::{Ready, ready};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::network::{Closure, answers_to, parsed};
use super::{FakeHost, State};
use crate::host::wait_list::WaitList;
use crate::net::Error;

/// Datagram that a fake peer sends back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UdpAnswer {
    /// Delay between the handler's datagram and the answer.
    pub after: Duration,
    /// Sender address, not necessarily the address the handler sent to.
    pub from: SocketAddr,
    /// Content of the datagram.
    pub payload: Vec<u8>,
}

type Answer = dyn FnMut(SocketAddr, &[u8]) -> Vec<UdpAnswer>;

#[derive(Debug, Default)]
pub(crate) struct Peers(RefCell<Vec<(SocketAddr, Closure<Box<Answer>>)>>);

impl FakeHost {
    /// Adds a peer that receives datagrams to an address or a group, such as `239.255.255.250:3702` or `[ff02::c%2]:3702`;
    /// without a scope it receives from all scopes. The closure gets the sender's address and the payload. Several peers may
    /// share an address.
    #[must_use]
    pub fn udp_peer(
        self,
        address: impl Display,
        answer: impl FnMut(SocketAddr, &[u8]) -> Vec<UdpAnswer> + 'static,
    ) -> Self {
        let peer = (parsed(&address), Closure(Box::new(answer) as Box<Answer>));
        self.0.network.udp.0.borrow_mut().push(peer);
        self
    }
}

/// Datagram in flight: arrival time, sender, payload.
type OnItsWay = (Duration, SocketAddr, Vec<u8>);

#[derive(Debug)]
pub(crate) struct UdpSocket {
    state: Rc<State>,
    local: SocketAddr,
    /// Datagrams in order of arrival.
    inbox: RefCell<VecDeque<OnItsWay>>,
    changed: WaitList<(), ()>,
}

impl UdpSocket {
    pub fn bind(state: &Rc<State>, mut local: SocketAddr) -> Result<Self, Error> {
        let own = |ip| {
            let interfaces = state.network.interfaces.borrow();
            let mut addresses = interfaces.iter().flat_map(|other| &other.addresses);
            addresses.any(|address| address.ip == ip)
        };
        let bindable = local.ip().is_unspecified() || own(local.ip());
        if local.port() != 0 || !bindable || state.network.denies_address(local) {
            return Err(Error::Denied(format!("udp from {local}")));
        }
        local.set_port(state.network.port());
        Ok(Self {
            state: Rc::clone(state),
            local,
            inbox: RefCell::default(),
            changed: WaitList::default(),
        })
    }

    pub fn local(&self) -> SocketAddr {
        self.local
    }

    pub fn send_to(&self, payload: &[u8], to: SocketAddr) -> Ready<Result<(), Error>> {
        let network = &self.state.network;
        if network.denies_address(to) {
            return ready(Err(Error::Denied(format!("udp {to}"))));
        }
        let mut from = self.local;
        if from.ip().is_unspecified()
            && let Some(ip) = network.source(to.ip())
        {
            from.set_ip(ip);
        }
        self.state.contact(Some(from), format!("udp {to}"));
        let mut answers = Vec::new();
        for (_, peer) in network
            .udp
            .0
            .borrow_mut()
            .iter_mut()
            .filter(|(address, _)| answers_to(*address, to))
        {
            answers.extend((peer.0)(from, payload));
        }
        for answer in answers {
            if !network.denies_address(answer.from) {
                self.arrive(answer);
            }
        }
        ready(Ok(()))
    }

    fn arrive(&self, answer: UdpAnswer) {
        let at = self.state.clock.now().saturating_add(answer.after);
        let mut inbox = self.inbox.borrow_mut();
        let place = inbox.partition_point(|(other, ..)| *other <= at);
        inbox.insert(place, (at, answer.from, answer.payload));
        drop(inbox);
        for (key, ()) in self.changed.all() {
            self.changed.happened(key);
        }
    }

    /// Returns the next datagram, if one has arrived.
    #[allow(
        clippy::unnecessary_wraps,
        reason = "it stands in the place of what may fail"
    )]
    pub fn take(&self) -> Result<Option<(Vec<u8>, SocketAddr)>, Error> {
        let now = self.state.clock.now();
        let mut inbox = self.inbox.borrow_mut();
        let arrived = inbox.pop_front_if(|(at, ..)| *at <= now);
        Ok(arrived.map(|(_, from, payload)| (payload, from)))
    }

    /// Waits until a datagram may have arrived.
    pub async fn arrival(&self) {
        let changed = self.changed.wait((), ());
        let next = self.inbox.borrow().front().map(|(at, ..)| *at);
        match next {
            Some(at) => {
                let arrival = self.state.clock.sleep_until(at);
                crate::host::unless(arrival, changed).await;
            }
            None => changed.await,
        }
    }
}
