//! Addresses that no wide network means: each has to be named by an entry of its own kind.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::Interface;

/// A range that only an entry inside it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Special {
    /// The range.
    pub(super) net: IpNet,
    /// What it is.
    pub(super) what: What,
}

/// What a special range is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Unspecified,
    Loopback,
    LinkLocal,
    Metadata,
    Multicast,
    Broadcast,
    Own,
    Containers(String),
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("\"this host\""),
            Self::Loopback => f.write_str("loopback"),
            Self::LinkLocal => f.write_str("link-local"),
            Self::Metadata => f.write_str("a cloud's metadata service"),
            Self::Multicast => f.write_str("multicast"),
            Self::Broadcast => f.write_str("broadcast"),
            Self::Own => f.write_str("the node's own address"),
            Self::Containers(name) => write!(f, "the containers' network on {name}"),
        }
    }
}

/// IPv4 ranges that are special everywhere. The metadata services are those of AWS, Azure, Google and most others
/// (169.254.169.254), of Azure's host (168.63.129.16) and of Alibaba (100.100.100.200).
const FIXED_V4: [([u8; 4], u8, What); 7] = [
    ([0, 0, 0, 0], 8, What::Unspecified),
    ([127, 0, 0, 0], 8, What::Loopback),
    ([169, 254, 0, 0], 16, What::LinkLocal),
    ([169, 254, 169, 254], 32, What::Metadata),
    ([168, 63, 129, 16], 32, What::Metadata),
    ([100, 100, 100, 200], 32, What::Metadata),
    ([224, 0, 0, 0], 4, What::Multicast),
];

/// IPv6 ranges that are special everywhere. `fd00:ec2::/32` has AWS's services, `fd20:ce::254` is Google's.
const FIXED_V6: [([u16; 8], u8, What); 6] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, What::Unspecified),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, What::Loopback),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, What::LinkLocal),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32, What::Metadata),
    ([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254], 128, What::Metadata),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, What::Multicast),
];

/// The ranges that are special everywhere.
pub(super) fn fixed() -> Vec<Special> {
    let v4 = FIXED_V4.iter().filter_map(|(address, length, what)| {
        let net = Ipv4Net::new((*address).into(), *length).ok()?;
        Some(special(net, what.clone()))
    });
    let v6 = FIXED_V6.iter().filter_map(|(address, length, what)| {
        let net = Ipv6Net::new((*address).into(), *length).ok()?;
        Some(special(net, what.clone()))
    });
    let limited = special(
        IpNet::from(IpAddr::from([255, 255, 255, 255])),
        What::Broadcast,
    );
    v4.chain(v6).chain([limited]).collect()
}

/// The ranges that are special because of that interface: its addresses, the broadcast addresses of its networks, and
/// those networks themselves if containers live there.
pub(super) fn of(interface: &Interface, is_containers: bool) -> Vec<Special> {
    let mut ranges = Vec::new();
    for net in &interface.addresses {
        let address = net.addr();
        if address.is_loopback() || is_link_local(address) {
            continue;
        }
        ranges.push(special(IpNet::from(address), What::Own));
        if let IpNet::V4(v4) = net
            && v4.prefix_len() < 31
        {
            // The lowest address is the broadcast address of old systems.
            for broadcast in [v4.broadcast(), v4.network()] {
                ranges.push(special(
                    IpNet::from(IpAddr::from(broadcast)),
                    What::Broadcast,
                ));
            }
        }
        if is_containers {
            ranges.push(special(
                net.trunc(),
                What::Containers(interface.name.clone()),
            ));
        }
    }
    ranges
}

fn special(net: impl Into<IpNet>, what: What) -> Special {
    Special {
        net: net.into(),
        what,
    }
}

/// Whether the address means something on one link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
