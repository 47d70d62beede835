//! UDP: single sockets, and probes sent from all addresses at once.

mod probe;

use std::net::SocketAddr;
use std::time::Duration;

use crate::host::imports;
use crate::net::Error;

pub(crate) use probe::run;

/// Bound UDP socket, created by [`Host::udp`](crate::Host::udp). Dropping it closes it.
#[derive(Debug)]
pub struct Socket(pub(crate) imports::UdpSocket);

impl Socket {
    /// Returns the bound address, with the port the system chose.
    pub fn local(&self) -> SocketAddr {
        self.0.local()
    }

    /// Sends one datagram.
    pub async fn send_to(&self, payload: &[u8], to: SocketAddr) -> Result<(), Error> {
        self.0.send_to(payload, to).await
    }

    /// Waits for the next datagram from an address that the grants permit, and returns it with its sender. Has no timeout of
    /// its own; dropping the future loses no datagram.
    pub async fn receive(&self) -> Result<(Vec<u8>, SocketAddr), Error> {
        loop {
            if let Some(received) = self.0.take()? {
                return Ok(received);
            }
            self.0.arrival().await;
        }
    }
}

/// Datagrams to send and the window for answers, for [`Host::probe`](crate::Host::probe).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// Addresses to send from, with port 0: one for each network, since a datagram leaves through the interface of its
    /// sender's address. If empty, the unspecified address is used, which follows the default route.
    pub from: Vec<SocketAddr>,
    /// Datagrams as delay after the start, target and payload. Each is sent from every address of its target's family, but
    /// not from an address with a scope id to another scope; a link-local target without a scope id gets the sender's.
    pub sends: Vec<(Duration, SocketAddr, Vec<u8>)>,
    /// Time during which answers are collected.
    pub window: Duration,
    /// Maximum number of answers kept, with 2 KiB for each on average. Once it is reached, an answer of a sender with fewer
    /// answers replaces one of the sender with the most, so a flooding sender does not displace others. After eight times as
    /// many answers the probe stops reading.
    pub max_replies: usize,
}

/// Answer to a [`Probe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Address of the sender.
    pub from: SocketAddr,
    /// Address and port of the probe that received it.
    pub local: SocketAddr,
    /// Time from the start until it was read, at most 10 ms after it arrived.
    pub after: Duration,
    /// Content of the datagram.
    pub payload: Vec<u8>,
}
