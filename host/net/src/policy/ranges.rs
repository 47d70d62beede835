//! Special addresses that no wide network includes: each needs an entry for its own kind.

use std::fmt;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::Interface;

/// A range that only an entry inside it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Special {
    /// Network of the range.
    pub(super) net: IpNet,
    /// Kind of the range.
    pub(super) what: RangeKind,
}

/// Kind of a special range.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum RangeKind {
    Unspecified,
    Loopback,
    LinkLocal,
    Metadata,
    Multicast,
    Broadcast,
    Own,
    Translated,
    Containers(String),
    /// An IPv6 form of a special IPv4 address.
    Wrapped(Box<RangeKind>),
}

impl fmt::Display for RangeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unspecified => f.write_str("\"this host\""),
            Self::Loopback => f.write_str("loopback"),
            Self::LinkLocal => f.write_str("link-local"),
            Self::Metadata => f.write_str("a cloud's metadata service"),
            Self::Multicast => f.write_str("multicast"),
            Self::Broadcast => f.write_str("broadcast"),
            Self::Own => f.write_str("the node's own address"),
            Self::Translated => f.write_str("a NAT64 prefix for local use"),
            Self::Containers(name) => write!(f, "the containers' network on {name}"),
            Self::Wrapped(what) => write!(f, "an IPv6 form of an IPv4 address ({what})"),
        }
    }
}

/// IPv4 ranges that are special everywhere. The metadata services are those of AWS, Azure, Google and most others
/// (169.254.169.254), of Azure's host (168.63.129.16) and of Alibaba (100.100.100.200).
const FIXED_V4: [([u8; 4], u8, RangeKind); 7] = [
    ([0, 0, 0, 0], 8, RangeKind::Unspecified),
    ([127, 0, 0, 0], 8, RangeKind::Loopback),
    ([169, 254, 0, 0], 16, RangeKind::LinkLocal),
    ([169, 254, 169, 254], 32, RangeKind::Metadata),
    ([168, 63, 129, 16], 32, RangeKind::Metadata),
    ([100, 100, 100, 200], 32, RangeKind::Metadata),
    ([224, 0, 0, 0], 4, RangeKind::Multicast),
];

/// IPv6 ranges that are special everywhere. `fd00:ec2::/32` has AWS's services, `fd20:ce::254` is Google's. Only its gateway knows where
/// an address of `64:ff9b:1::/48` (RFC 8215) contains the IPv4 address, and in which network that is.
const FIXED_V6: [([u16; 8], u8, RangeKind); 7] = [
    ([0, 0, 0, 0, 0, 0, 0, 0], 128, RangeKind::Unspecified),
    ([0, 0, 0, 0, 0, 0, 0, 1], 128, RangeKind::Loopback),
    ([0xfe80, 0, 0, 0, 0, 0, 0, 0], 10, RangeKind::LinkLocal),
    ([0xfd00, 0xec2, 0, 0, 0, 0, 0, 0], 32, RangeKind::Metadata),
    (
        [0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254],
        128,
        RangeKind::Metadata,
    ),
    ([0x64, 0xff9b, 1, 0, 0, 0, 0, 0], 48, RangeKind::Translated),
    ([0xff00, 0, 0, 0, 0, 0, 0, 0], 8, RangeKind::Multicast),
];

/// Prefixes that gateways and tunnels put before an IPv4 address to make it reachable over IPv6, as bits from the left with their length:
/// NAT64 (RFC 6052; a local prefix of RFC 8215 in its usual form, for entries inside it), 6to4 (RFC 3056), stateless translators
/// (RFC 2765), automatic tunnels (RFC 4291, 2.5.5.1). The mapped form `::ffff:0:0/96`, which sockets know, is removed before.
const WRAPS: [(u128, u8); 5] = [
    (0x0064_ff9b << 96, 96),
    (0x0064_ff9b_0001 << 80, 96),
    (0x2002 << 112, 16),
    (0xffff << 48, 96),
    (0, 96),
];

/// Returns the IPv6 forms of a special IPv4 range.
pub(super) fn wrapped(range: &Special) -> impl Iterator<Item = Special> {
    let v4 = match range.net {
        IpNet::V4(net) => Some(net),
        IpNet::V6(_) => None,
    };
    v4.into_iter().flat_map(move |v4| {
        let what = range.what.clone();
        WRAPS.iter().filter_map(move |(prefix, length)| {
            let inside = u128::from(v4.network().to_bits()) << (96_u8.saturating_sub(*length));
            let net = Ipv6Net::new((prefix | inside).into(), length + v4.prefix_len()).ok()?;
            Some(special(net, RangeKind::Wrapped(Box::new(what.clone()))))
        })
    })
}

/// Returns the ranges that are special everywhere.
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
        RangeKind::Broadcast,
    );
    v4.chain(v6).chain([limited]).collect()
}

/// Returns the ranges that are special because of the interface: its addresses, the broadcast addresses of its networks, and the networks
/// themselves if containers live there.
pub(super) fn of(interface: &Interface, is_containers: bool) -> Vec<Special> {
    let mut ranges = Vec::new();
    for net in &interface.addresses {
        let address = net.addr();
        if address.is_loopback() || is_link_local(address) {
            continue;
        }
        ranges.push(special(IpNet::from(address), RangeKind::Own));
        if let IpNet::V4(v4) = net
            && v4.prefix_len() < 31
        {
            // Old systems use the lowest address as broadcast address.
            for broadcast in [v4.broadcast(), v4.network()] {
                ranges.push(special(
                    IpNet::from(IpAddr::from(broadcast)),
                    RangeKind::Broadcast,
                ));
            }
        }
        // A node that forwards accepts packets to the first address of its networks (RFC 4291, 2.6.1).
        if let IpNet::V6(v6) = net
            && v6.prefix_len() < 127
        {
            ranges.push(special(
                IpNet::from(IpAddr::from(v6.network())),
                RangeKind::Own,
            ));
        }
        if is_containers {
            ranges.push(special(
                net.trunc(),
                RangeKind::Containers(interface.name.clone()),
            ));
        }
    }
    ranges
}

/// Returns the range of a local route: the node accepts packets to it, even if no interface has the address.
pub(super) fn local(net: IpNet) -> Option<Special> {
    let address = net.addr();
    let is_other = address.is_loopback() || is_link_local(address) || address.is_multicast();
    (!is_other).then(|| special(net, RangeKind::Own))
}

fn special(net: impl Into<IpNet>, what: RangeKind) -> Special {
    Special {
        net: net.into(),
        what,
    }
}

/// Returns true if the address is valid on one link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
