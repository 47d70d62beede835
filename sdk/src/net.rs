//! Types shared by all network modules: addresses of the node, and errors.

use std::fmt;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

/// Maximum number of names that one call may look up with [`Host::resolve`](crate::Host::resolve). The next is
/// [`Error::Denied`].
pub const LOOK_UPS: usize = 64;
/// Maximum number of connections that one call may begin, including those of requests. The next is [`Error::Denied`].
pub const CONNECTIONS: usize = 4_096;

/// Network interface of the node that the handler may use.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkInterface {
    /// Name, such as `eth0`.
    pub name: String,
    /// Interface index: the scope id of link-local addresses and IPv6 groups on it, and the value of
    /// [`Datagram::interface`](crate::Datagram::interface).
    pub index: u32,
    /// Addresses, sorted.
    pub addresses: Vec<Address>,
}

impl NetworkInterface {
    /// Returns the addresses to bind sockets to: with port 0, and with the scope id for link-local ones.
    pub fn locals(&self) -> impl Iterator<Item = SocketAddr> {
        self.addresses.iter().map(|address| match address.ip {
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(ip, 0, 0, self.index))
            }
            ip => SocketAddr::new(ip, 0),
        })
    }
}

/// Address of an interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    /// IP address.
    pub ip: IpAddr,
    /// Length of the network prefix in bits.
    pub prefix: u8,
}

impl Address {
    /// Returns true if `ip` is in the network of this address.
    pub fn contains(&self, ip: IpAddr) -> bool {
        let (own, other, width) = match (self.ip, ip) {
            (IpAddr::V4(own), IpAddr::V4(other)) => (
                u128::from(own.to_bits()) << 96,
                u128::from(other.to_bits()) << 96,
                32,
            ),
            (IpAddr::V6(own), IpAddr::V6(other)) => (own.to_bits(), other.to_bits(), 128),
            _ => return false,
        };
        let host_bits = 128 - u32::from(self.prefix.min(width));
        (own ^ other).checked_shr(host_bits).unwrap_or(0) == 0
    }
}

/// Error of a network operation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// Denied by the grants; names the operation.
    Denied(String),
    /// Time limit exceeded.
    TimedOut,
    /// Connection refused by the peer.
    Refused,
    /// No route to the address.
    Unreachable,
    /// Connection ended by the peer or the network.
    Closed,
    /// Host name without an address; says which and why.
    Name(String),
    /// Answer larger than this many bytes.
    TooLarge(usize),
    /// Any other error, as text.
    Other(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Denied(what) => write!(f, "not granted: {what}"),
            Self::TimedOut => f.write_str("timed out"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Closed => f.write_str("connection closed"),
            Self::Name(what) => write!(f, "cannot resolve {what}"),
            Self::TooLarge(bytes) => write!(f, "the answer is larger than {bytes} bytes"),
            Self::Other(what) => f.write_str(what),
        }
    }
}

impl std::error::Error for Error {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_local_address_is_bound_with_its_scope_id() {
        let addresses = ["192.168.7.2", "fe80::1", "2001:db8::1"].map(|ip| Address {
            ip: ip.parse().unwrap(),
            prefix: 24,
        });
        let interface = NetworkInterface {
            name: "eth0".to_owned(),
            index: 3,
            addresses: addresses.to_vec(),
        };
        let locals: Vec<_> = interface.locals().map(|local| local.to_string()).collect();
        assert_eq!(
            locals,
            ["192.168.7.2:0", "[fe80::1%3]:0", "[2001:db8::1]:0"]
        );
    }

    #[test]
    fn a_network_contains_addresses_with_its_prefix() {
        for (own, prefix, other, inside) in [
            ("192.168.7.2", 24, "192.168.7.200", true),
            ("192.168.7.2", 24, "192.168.8.2", false),
            ("192.168.7.2", 0, "8.8.8.8", true),
            ("192.168.7.2", 32, "192.168.7.2", true),
            ("192.168.7.2", 32, "192.168.7.3", false),
            ("192.168.7.2", 99, "192.168.7.3", false),
            ("fe80::1", 64, "fe80::ffff:2", true),
            ("fe80::1", 64, "fe80:0:0:1::2", false),
            ("fe80::1", 0, "2001:db8::1", true),
            ("fe80::1", 0, "192.168.7.2", false),
        ] {
            let address = Address {
                ip: own.parse().unwrap(),
                prefix,
            };
            assert_eq!(
                address.contains(other.parse().unwrap()),
                inside,
                "{own}/{prefix} {other}"
            );
        }
    }
}
