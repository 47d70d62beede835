//! Special addresses that no wide network includes: each needs an entry for its own kind.

use std::borrow::Cow;
use std::net::IpAddr;

use ipnet::{IpNet, Ipv6Net};

use crate::Interface;

/// A range whose addresses only an entry inside it allows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Special {
    pub(super) net: IpNet,
    /// Kind of the range, for the operator.
    pub(super) what: Cow<'static, str>,
}

const METADATA: &str = "a cloud's metadata service";
const BROADCAST: &str = "broadcast";
const OWN: &str = "the node's own address";

/// Ranges that are special everywhere, with their kinds. The metadata services are those of AWS, Azure, Google and most
/// others (169.254.169.254), of Azure's host (168.63.129.16), of Alibaba (100.100.100.200), and over IPv6 of AWS
/// (`fd00:ec2::/32`) and Google (`fd20:ce::254`). Only its gateway knows where an address of `64:ff9b:1::/48` (RFC 8215)
/// contains the IPv4 address, and in which network that is.
pub(super) const FIXED: [(&str, &str); 15] = [
    ("0.0.0.0/8", "\"this host\""),
    ("127.0.0.0/8", "loopback"),
    ("169.254.0.0/16", "link-local"),
    ("169.254.169.254/32", METADATA),
    ("168.63.129.16/32", METADATA),
    ("100.100.100.200/32", METADATA),
    ("224.0.0.0/4", "multicast"),
    ("255.255.255.255/32", BROADCAST),
    ("::/128", "\"this host\""),
    ("::1/128", "loopback"),
    ("fe80::/10", "link-local"),
    ("fd00:ec2::/32", METADATA),
    ("fd20:ce::254/128", METADATA),
    ("64:ff9b:1::/48", "a NAT64 prefix for local use"),
    ("ff00::/8", "multicast"),
];

/// IPv6 prefixes under which gateways and tunnels make IPv4 addresses reachable, left-aligned, with their lengths:
/// NAT64 (RFC 6052), the usual local prefix of NAT64 (RFC 8215; matters for entries inside it), 6to4 (RFC 3056),
/// stateless translators (RFC 2765), automatic tunnels (RFC 4291, 2.5.5.1). IPv4-mapped addresses (`::ffff:0:0/96`),
/// which sockets accept, have been converted to IPv4 before.
const WRAPS: [(u128, u8); 5] = [
    (0x0064_ff9b << 96, 96),
    (0x0064_ff9b_0001 << 80, 96),
    (0x2002 << 112, 16),
    (0xffff << 48, 96),
    (0, 96),
];

/// Returns the IPv6 forms of a special IPv4 range.
pub(super) fn wrapped(range: &Special) -> Vec<Special> {
    let IpNet::V4(v4) = range.net else {
        return Vec::new();
    };
    let what = format!("an IPv6 form of an IPv4 address ({})", range.what);
    let forms = WRAPS.iter().filter_map(|(prefix, length)| {
        let inside = u128::from(v4.network().to_bits()) << (96_u8.saturating_sub(*length));
        let net = Ipv6Net::new((prefix | inside).into(), length + v4.prefix_len()).ok()?;
        Some(special(net, what.clone()))
    });
    forms.collect()
}

/// Returns the ranges that are special everywhere.
pub(super) fn fixed() -> Vec<Special> {
    let ranges = FIXED.iter();
    ranges
        .filter_map(|(net, what)| Some(special(net.parse::<IpNet>().ok()?, *what)))
        .collect()
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
        ranges.push(special(IpNet::from(address), OWN));
        if let IpNet::V4(v4) = net
            && v4.prefix_len() < 31
        {
            // Old systems use the lowest address as broadcast address.
            for broadcast in [v4.broadcast(), v4.network()] {
                ranges.push(special(IpNet::from(IpAddr::from(broadcast)), BROADCAST));
            }
        }
        // A node that forwards accepts packets to the first address of its networks (RFC 4291, 2.6.1).
        if let IpNet::V6(v6) = net
            && v6.prefix_len() < 127
        {
            ranges.push(special(IpNet::from(IpAddr::from(v6.network())), OWN));
        }
        if is_containers {
            let what = format!("the containers' network on {}", interface.name);
            ranges.push(special(net.trunc(), what));
        }
    }
    ranges
}

/// Returns the range of a local route: the node accepts packets to it, even if no interface has the address.
pub(super) fn local(net: IpNet) -> Option<Special> {
    let address = net.addr();
    let is_other = address.is_loopback() || is_link_local(address) || address.is_multicast();
    (!is_other).then(|| special(net, OWN))
}

fn special(net: impl Into<IpNet>, what: impl Into<Cow<'static, str>>) -> Special {
    let (net, what) = (net.into(), what.into());
    Special { net, what }
}

/// Returns true if the address is valid on one link only.
pub(super) fn is_link_local(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}
