//! Datagrams: one socket at a time, or a probe from all addresses at once.

mod probe;

use std::net::SocketAddr;
use std::time::Duration;

use crate::host::imports;
use crate::net::Error;

pub(crate) use probe::run;

/// A bound socket, made by [`Host::udp`](crate::Host::udp). Dropping it closes it.
#[derive(Debug)]
pub struct Socket(pub(crate) imports::UdpSocket);

impl Socket {
    /// The address it is bound to, with the port the system chose.
    pub fn local(&self) -> SocketAddr {
        self.0.local()
    }

    /// Sends one datagram.
    pub async fn send_to(&self, payload: &[u8], to: SocketAddr) -> Result<(), Error> {
        self.0.send_to(payload, to).await
    }

    /// Waits for the next datagram from an address the grants let in, and says who sent it. Has no timeout of its own;
    /// when the future is dropped, nothing is lost.
    pub async fn receive(&self) -> Result<(Vec<u8>, SocketAddr), Error> {
        loop {
            if let Some(received) = self.0.take()? {
                return Ok(received);
            }
            self.0.arrival().await;
        }
    }
}

/// A question to everybody, for [`Host::probe`](crate::Host::probe).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Probe {
    /// The addresses to ask from, with port 0: one for each network, since a datagram leaves where its sender's
    /// address is. Empty: the unspecified address, which asks where the default route leads.
    pub from: Vec<SocketAddr>,
    /// When after the start, to whom, what. Each goes out from every address of its family, but from one with a scope id not
    /// to another scope; a link-local target without a scope id gets the sender's.
    pub sends: Vec<(Duration, SocketAddr, Vec<u8>)>,
    /// How long answers are collected.
    pub window: Duration,
    /// How many answers are kept, and 2 KiB for each on average. When that many are kept, one of a sender that has fewer
    /// takes the place of one of the sender that has most: who floods keeps nobody out. After eight times as many nothing is
    /// read any more.
    pub max_replies: usize,
}

/// An answer to a [`Probe`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reply {
    /// Who sent it.
    pub from: SocketAddr,
    /// Which of the probe's addresses it came to, with the port.
    pub local: SocketAddr,
    /// How long after the start it was read, at most 10 ms after it came.
    pub after: Duration,
    /// What it says.
    pub payload: Vec<u8>,
}
