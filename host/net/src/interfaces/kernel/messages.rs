//! Netlink messages about interfaces, addresses and local routes. Does not know sockets.
//!
//! The library writes the requests. From an answer this module reads only an interface's name and flags and a route's destination: the
//! library rejects a whole message if it cannot read one attribute, and a newer kernel may send such an attribute.

use std::net::IpAddr;

use ipnet::IpNet;

use netlink_packet_core::{
    DecodeError, NetlinkDeserializable, NetlinkHeader, NlasIterator, Parseable, parse_string,
};
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{
    LinkAttribute, LinkExtentMask, LinkFlags, LinkHeader, LinkMessage,
};
use netlink_packet_route::route::{RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use super::Interface;

// From linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWLINK: u16 = 16;
const RTM_NEWADDR: u16 = 20;
const RTM_NEWROUTE: u16 = 24;
const RTM_DELROUTE: u16 = 25;
const RTA_DST: u16 = 1;
const LOCAL_TABLE: u8 = 255;
const IFLA_IFNAME: u16 = 3;
/// Size of `struct ifinfomsg`, which precedes an interface's attributes.
const LINK_HEAD: usize = 16;
/// Size of `struct rtmsg`, which precedes a route's attributes.
const ROUTE_HEAD: usize = 12;
/// Size of `struct nlmsghdr`, which precedes any message.
const HEAD: usize = 16;

/// Builds a request for the interfaces, without their counters.
pub(super) fn get_links() -> RouteNetlinkMessage {
    let mut links = LinkMessage::default();
    let mask = vec![LinkExtentMask::SkipStats];
    links.attributes.push(LinkAttribute::ExtMask(mask));
    RouteNetlinkMessage::GetLink(links)
}

/// Builds a request for the routes of one family to the node itself.
pub(super) fn get_local_routes(family: AddressFamily) -> RouteNetlinkMessage {
    let mut routes = RouteMessage::default();
    routes.header.address_family = family;
    routes.header.table = LOCAL_TABLE;
    routes.header.kind = RouteType::Local;
    RouteNetlinkMessage::GetRoute(routes)
}

/// One message of the kernel's answer.
#[derive(Debug)]
pub(super) enum Answer {
    /// An interface, without its addresses.
    Link(Interface),
    Address(AddressMessage),
    /// Addresses of the node itself.
    LocalRoute(IpNet),
    Other,
}

impl NetlinkDeserializable for Answer {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        match header.message_type {
            RTM_NEWLINK => Ok(link(payload)?.map_or(Self::Other, Self::Link)),
            RTM_NEWADDR => AddressMessage::parse(payload).map(Self::Address),
            RTM_NEWROUTE => Ok(local_route(payload)?.map_or(Self::Other, Self::LocalRoute)),
            _ => Ok(Self::Other),
        }
    }
}

/// Returns an interface; `None` if it has no name.
fn link(payload: &[u8]) -> Result<Option<Interface>, DecodeError> {
    let LinkHeader { index, flags, .. } = LinkHeader::parse(payload)?;
    for attribute in NlasIterator::new(payload.get(LINK_HEAD..).unwrap_or_default()) {
        let attribute = attribute?;
        if attribute.kind() == IFLA_IFNAME {
            return Ok(Some(Interface {
                name: parse_string(attribute.value())?,
                index,
                addresses: Vec::new(),
                up: flags.contains(LinkFlags::Up | LinkFlags::Running),
                multicast: flags.contains(LinkFlags::Multicast),
                loopback: flags.contains(LinkFlags::Loopback),
            }));
        }
    }
    Ok(None)
}

/// Returns true if a route message is about the table `local`.
fn is_local_table(route: &[u8]) -> bool {
    route.get(4) == Some(&LOCAL_TABLE)
}

/// Returns the destination of a route to the node itself; `None` for other routes and for the default route.
fn local_route(payload: &[u8]) -> Result<Option<IpNet>, DecodeError> {
    let [_, length, _, _, _, _, _, kind, ..] = payload else {
        return Err(DecodeError::from("a route is too short"));
    };
    if !is_local_table(payload) || RouteType::from(*kind) != RouteType::Local {
        return Ok(None);
    }
    for attribute in NlasIterator::new(payload.get(ROUTE_HEAD..).unwrap_or_default()) {
        let attribute = attribute?;
        if attribute.kind() == RTA_DST {
            return Ok(destination(attribute.value(), *length));
        }
    }
    Ok(None)
}

fn destination(address: &[u8], length: u8) -> Option<IpNet> {
    let v4 = || Some(IpAddr::from(<[u8; 4]>::try_from(address).ok()?));
    let v6 = || Some(IpAddr::from(<[u8; 16]>::try_from(address).ok()?));
    IpNet::new(v4().or_else(v6)?, length).ok()
}

/// Returns true if an event is about a route outside the table `local`.
pub(super) fn is_of_another_route(event: &[u8]) -> bool {
    let kind = event.get(4..6).and_then(|bytes| bytes.try_into().ok());
    let is_route = matches!(
        kind.map(u16::from_ne_bytes),
        Some(RTM_NEWROUTE | RTM_DELROUTE)
    );
    is_route && !is_local_table(event.get(HEAD..).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
    use netlink_packet_route::route::{RouteAddress, RouteAttribute};

    use super::*;

    fn sent(message: RouteNetlinkMessage) -> Vec<u8> {
        let mut message = NetlinkMessage::new(
            NetlinkHeader::default(),
            NetlinkPayload::InnerMessage(message),
        );
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    fn parsed(message: RouteNetlinkMessage) -> Answer {
        let bytes = sent(message);
        match NetlinkMessage::deserialize(&bytes).unwrap().payload {
            NetlinkPayload::InnerMessage(answer) => answer,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn answers_of_the_library_are_read() {
        let mut link = LinkMessage::default();
        link.header.index = 7;
        link.header.flags = LinkFlags::Up | LinkFlags::Multicast;
        let nameless = parsed(RouteNetlinkMessage::NewLink(link.clone()));
        assert!(matches!(nameless, Answer::Other), "{nameless:?}");
        link.attributes = vec![
            LinkAttribute::Mtu(1500),
            LinkAttribute::IfName("eth0".into()),
        ];
        let Answer::Link(read) = parsed(RouteNetlinkMessage::NewLink(link.clone())) else {
            panic!("no interface");
        };
        assert_eq!((read.name.as_str(), read.index), ("eth0", 7));
        assert!(!read.up && read.multicast && !read.loopback, "{read:?}");
        let mut address = AddressMessage::default();
        address.header.index = 7;
        let Answer::Address(read) = parsed(RouteNetlinkMessage::NewAddress(address.clone())) else {
            panic!("no address");
        };
        assert_eq!(read, address);
        let gone = parsed(RouteNetlinkMessage::DelLink(link));
        assert!(matches!(gone, Answer::Other), "{gone:?}");
    }

    #[test]
    fn only_local_routes_of_the_local_table_are_the_nodes_own() {
        let route = |address: &str, length, table, kind| {
            let mut route = RouteMessage::default();
            route.header.destination_prefix_length = length;
            (route.header.table, route.header.kind) = (table, kind);
            let destination = match address.parse().unwrap() {
                IpAddr::V4(ip) => RouteAddress::Inet(ip),
                IpAddr::V6(ip) => RouteAddress::Inet6(ip),
            };
            route.attributes = vec![
                RouteAttribute::Table(table.into()),
                RouteAttribute::Destination(destination),
            ];
            route
        };
        for (route, own) in [
            (
                route("10.5.0.0", 24, 255, RouteType::Local),
                Some("10.5.0.0/24"),
            ),
            (
                route("2001:db8::", 64, 255, RouteType::Local),
                Some("2001:db8::/64"),
            ),
            (route("10.5.0.255", 32, 255, RouteType::Broadcast), None),
            // Transparent proxies add such routes.
            (route("10.5.0.0", 24, 100, RouteType::Local), None),
            (route("10.5.0.0", 24, 254, RouteType::Unicast), None),
        ] {
            let message = RouteNetlinkMessage::NewRoute(route.clone());
            let concerns = !is_of_another_route(&sent(message.clone()));
            assert_eq!(concerns, route.header.table == 255, "{route:?}");
            let read = match parsed(message) {
                Answer::LocalRoute(net) => Some(net.to_string()),
                _ => None,
            };
            assert_eq!(read.as_deref(), own, "{route:?}");
        }
        assert!(!is_of_another_route(b""));
    }

    #[test]
    fn short_messages_are_errors() {
        let header = |message_type| {
            let mut header = NetlinkHeader::default();
            header.message_type = message_type;
            header
        };
        for kind in [RTM_NEWLINK, RTM_NEWADDR, RTM_NEWROUTE] {
            Answer::deserialize(&header(kind), &[0; 7]).unwrap_err();
        }
        // The length of the attribute exceeds the message.
        let mut bytes = vec![0; LINK_HEAD];
        bytes.extend([200, 0, 3, 0, b'e']);
        Answer::deserialize(&header(RTM_NEWLINK), &bytes).unwrap_err();
    }
}
