//! The interfaces of the node with their addresses, followed live through netlink. Knows no grants.

use std::net::IpAddr;
use std::sync::Arc;

use ipnet::IpNet;
use tokio::sync::watch;

/// One interface.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Interface {
    /// Its name, such as `eth0`.
    pub name: String,
    /// Its index, which is also the scope id of its link-local addresses.
    pub index: u32,
    /// Its addresses, each with the prefix length of its network; sorted.
    pub addresses: Vec<IpNet>,
    /// Whether it is up and has a carrier.
    pub up: bool,
    /// Whether it can multicast.
    pub multicast: bool,
    /// Whether it is the loopback interface.
    pub loopback: bool,
}

/// All interfaces at one moment, sorted by index.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Interfaces {
    /// The interfaces.
    pub list: Vec<Interface>,
}

impl Interfaces {
    /// Whether one of them has that address.
    pub fn have(&self, address: IpAddr) -> bool {
        let mut addresses = self.list.iter().flat_map(|interface| &interface.addresses);
        addresses.any(|net| net.addr() == address)
    }
}

/// Why the network cannot be seen.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// Netlink.
    #[error("cannot follow the network interfaces")]
    Netlink(#[source] std::io::Error),
}

/// The node's network as it is now; cheap to clone.
#[derive(Debug, Clone)]
pub struct Network {
    interfaces: watch::Receiver<Arc<Interfaces>>,
}

impl Network {
    /// Interfaces that somebody else follows: for tests.
    pub fn fixed(interfaces: watch::Receiver<Arc<Interfaces>>) -> Self {
        Self { interfaces }
    }

    /// The interfaces now.
    pub fn interfaces(&self) -> Arc<Interfaces> {
        self.interfaces.borrow().clone()
    }

    /// The interfaces as they change; equal snapshots are not sent twice.
    pub fn changes(&self) -> watch::Receiver<Arc<Interfaces>> {
        self.interfaces.clone()
    }
}
