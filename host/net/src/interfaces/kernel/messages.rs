//! The messages that say which interfaces and addresses there are, as the kernel sends them. Knows no socket.
//!
//! `netlink-packet-route` reads far more; its enumeration of all messages would bring the readers of all of them into the program
//! (350 KB), though an interface's name and flags are all that is asked for.

use netlink_packet_core::{
    DecodeError, DefaultNla, Emitable, NetlinkDeserializable, NetlinkHeader, NetlinkSerializable,
    NlasIterator, Parseable, parse_string,
};
use netlink_packet_route::address::{AddressHeader, AddressMessage};
use netlink_packet_route::link::{LinkFlags, LinkHeader};

// Of linux/rtnetlink.h and linux/if_link.h.
const RTM_NEWLINK: u16 = 16;
const RTM_GETLINK: u16 = 18;
const RTM_NEWADDR: u16 = 20;
const RTM_GETADDR: u16 = 22;
const IFLA_IFNAME: u16 = 3;
const IFLA_EXT_MASK: u16 = 29;
const RTEXT_FILTER_SKIP_STATS: u32 = 1 << 3;
/// `struct ifinfomsg`, which an interface's attributes come after.
const LINK_HEAD: usize = 16;

/// What the kernel is asked for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Question {
    /// The interfaces, without their counters.
    Links,
    /// Their addresses.
    Addresses,
}

impl Question {
    fn parts(self) -> Vec<Box<dyn Emitable>> {
        let mask = RTEXT_FILTER_SKIP_STATS.to_ne_bytes().to_vec();
        match self {
            Self::Links => vec![
                Box::new(LinkHeader::default()),
                Box::new(DefaultNla::new(IFLA_EXT_MASK, mask)),
            ],
            Self::Addresses => vec![Box::new(AddressHeader::default())],
        }
    }
}

impl NetlinkSerializable for Question {
    fn message_type(&self) -> u16 {
        match self {
            Self::Links => RTM_GETLINK,
            Self::Addresses => RTM_GETADDR,
        }
    }

    fn buffer_len(&self) -> usize {
        self.parts().iter().map(|part| part.buffer_len()).sum()
    }

    fn serialize(&self, buffer: &mut [u8]) {
        let mut rest = buffer;
        for part in self.parts() {
            let Some((own, after)) = rest.split_at_mut_checked(part.buffer_len()) else {
                return;
            };
            part.emit(own);
            rest = after;
        }
    }
}

/// What it answers.
#[derive(Debug)]
pub(super) enum Answer {
    /// An interface.
    Link(Link),
    /// An address.
    Address(AddressMessage),
    /// Anything else.
    Other,
}

/// An interface.
#[derive(Debug)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) index: u32,
    pub(super) flags: LinkFlags,
}

impl NetlinkDeserializable for Answer {
    type Error = DecodeError;

    fn deserialize(header: &NetlinkHeader, payload: &[u8]) -> Result<Self, DecodeError> {
        match header.message_type {
            RTM_NEWLINK => Ok(Link::parse(payload)?.map_or(Self::Other, Self::Link)),
            RTM_NEWADDR => AddressMessage::parse(payload).map(Self::Address),
            _ => Ok(Self::Other),
        }
    }
}

impl Link {
    /// None has no name.
    fn parse(payload: &[u8]) -> Result<Option<Self>, DecodeError> {
        let LinkHeader { index, flags, .. } = LinkHeader::parse(payload)?;
        for attribute in NlasIterator::new(payload.get(LINK_HEAD..).unwrap_or_default()) {
            let attribute = attribute?;
            if attribute.kind() == IFLA_IFNAME {
                let name = parse_string(attribute.value())?;
                return Ok(Some(Self { name, index, flags }));
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use netlink_packet_core::{NetlinkMessage, NetlinkPayload};
    use netlink_packet_route::RouteNetlinkMessage;
    use netlink_packet_route::link::{LinkAttribute, LinkExtentMask, LinkMessage};

    use super::*;

    fn sent<I: NetlinkSerializable>(message: I) -> Vec<u8> {
        let mut message = NetlinkMessage::new(
            NetlinkHeader::default(),
            NetlinkPayload::InnerMessage(message),
        );
        message.finalize();
        let mut bytes = vec![0; message.buffer_len()];
        message.serialize(&mut bytes);
        bytes
    }

    #[test]
    fn questions_are_those_of_the_library() {
        let mut links = LinkMessage::default();
        let mask = vec![LinkExtentMask::SkipStats];
        links.attributes.push(LinkAttribute::ExtMask(mask));
        let addresses = AddressMessage::default();
        assert_eq!(
            sent(Question::Links),
            sent(RouteNetlinkMessage::GetLink(links))
        );
        assert_eq!(
            sent(Question::Addresses),
            sent(RouteNetlinkMessage::GetAddress(addresses))
        );
    }

    fn heard(message: RouteNetlinkMessage) -> Answer {
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
        let nameless = heard(RouteNetlinkMessage::NewLink(link.clone()));
        assert!(matches!(nameless, Answer::Other), "{nameless:?}");
        link.attributes = vec![
            LinkAttribute::Mtu(1500),
            LinkAttribute::IfName("eth0".into()),
        ];
        let Answer::Link(read) = heard(RouteNetlinkMessage::NewLink(link.clone())) else {
            panic!("no interface");
        };
        assert_eq!((read.name.as_str(), read.index), ("eth0", 7));
        assert_eq!(read.flags, link.header.flags);
        let mut address = AddressMessage::default();
        address.header.index = 7;
        let Answer::Address(read) = heard(RouteNetlinkMessage::NewAddress(address.clone())) else {
            panic!("no address");
        };
        assert_eq!(read, address);
        let gone = heard(RouteNetlinkMessage::DelLink(link));
        assert!(matches!(gone, Answer::Other), "{gone:?}");
    }

    #[test]
    fn short_messages_are_errors() {
        let header = |message_type| {
            let mut header = NetlinkHeader::default();
            header.message_type = message_type;
            header
        };
        for kind in [RTM_NEWLINK, RTM_NEWADDR] {
            Answer::deserialize(&header(kind), &[0; 7]).unwrap_err();
        }
        // An attribute that says it is longer than the message.
        let mut bytes = vec![0; LINK_HEAD];
        bytes.extend([200, 0, 3, 0, b'e']);
        Answer::deserialize(&header(RTM_NEWLINK), &bytes).unwrap_err();
    }
}
