//! Reads interfaces and local routes from the kernel over a netlink route socket. Keeps no state.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use ipnet::IpNet;
use netlink_packet_core::{
    NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NetlinkBuffer, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressFlags, AddressMessage};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{AsyncSocket, AsyncSocketExt, Socket, SocketAddr, TokioSocket};

use super::{Interface, Interfaces};

mod messages;

use messages::Answer;

/// `RTMGRP_LINK`, and `RTMGRP_…_IFADDR` and `RTMGRP_…_ROUTE` of both families, from `linux/rtnetlink.h`.
const GROUPS: u32 = 0x1 | 0x10 | 0x100 | 0x40 | 0x400;
/// Buffer size: more than the kernel puts into one part of a dump (32 KiB).
const PART: usize = 64 * 1024;
/// Maximum number of dumps if something changes during a dump. An event follows each change, so the last dump is good enough.
const DUMPS: usize = 3;
/// `ENOBUFS`: events were lost.
const OVERRUN: i32 = nix::errno::Errno::ENOBUFS as i32;
/// `ENOENT`: there is no routing table of that number.
const NO_TABLE: i32 = nix::errno::Errno::ENOENT as i32;

pub(super) struct Events {
    socket: TokioSocket,
    buffer: Vec<u8>,
}

impl Events {
    /// Subscribes to events; no change after it returns is missed.
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = TokioSocket::new(NETLINK_ROUTE)?;
        socket.socket_mut().bind(&SocketAddr::new(0, GROUPS))?;
        Ok(Self {
            socket,
            buffer: Vec::with_capacity(4096),
        })
    }

    /// Waits for a change. Skips events of routes outside the table `local`: a router may have many of them per second. Cancel safe.
    pub(super) async fn next(&mut self) -> io::Result<()> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer).await {
                Err(error) if error.raw_os_error() == Some(OVERRUN) => return Ok(()),
                Ok(()) if messages::is_of_another_route(&self.buffer) => {}
                result => return result,
            }
        }
    }
}

pub(super) fn read() -> io::Result<Interfaces> {
    let (mut interfaces, mut local) = (BTreeMap::new(), BTreeSet::new());
    for _ in 0..DUMPS {
        interfaces.clear();
        local.clear();
        if read_into(&mut interfaces, &mut local)? {
            break;
        }
    }
    let mut list: Vec<Interface> = interfaces.into_values().collect();
    for interface in &mut list {
        interface.addresses.sort_unstable();
        interface.addresses.dedup();
    }
    // Every address of an interface has such a route, too.
    for interface in &list {
        for net in &interface.addresses {
            local.remove(&IpNet::from(net.addr()));
        }
    }
    let local = local.into_iter().collect();
    Ok(Interfaces { list, local })
}

/// Reads everything once; returns true if the result is consistent.
fn read_into(
    interfaces: &mut BTreeMap<u32, Interface>,
    local: &mut BTreeSet<IpNet>,
) -> io::Result<bool> {
    let mut socket = Socket::new(NETLINK_ROUTE)?;
    // The kernel answers within the call, so an empty queue means that there is no answer.
    socket.set_non_blocking(true)?;
    socket.bind_auto()?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let links_whole = dump(&socket, messages::get_links(), |answer| {
        if let Answer::Link(link) = answer {
            interfaces.insert(link.index, link);
        }
    })?;
    let addresses = RouteNetlinkMessage::GetAddress(AddressMessage::default());
    let addresses_whole = dump(&socket, addresses, |answer| {
        if let Answer::Address(address) = answer
            && let Some(interface) = interfaces.get_mut(&address.header.index)
        {
            interface.addresses.extend(network_of(&address));
        }
    })?;
    // Restricts the answer to one table: a router has long ones. Kernels before 4.20 return all tables.
    let _ = socket.set_netlink_get_strict_chk(true);
    let mut routes_whole = true;
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let dumped = dump(&socket, messages::get_local_routes(family), |answer| {
            if let Answer::LocalRoute(net) = answer {
                local.insert(net);
            }
        });
        routes_whole &= match dumped {
            // The table does not exist before the first address does.
            Err(error) if error.raw_os_error() == Some(NO_TABLE) => true,
            dumped => dumped?,
        };
    }
    Ok(links_whole && addresses_whole && routes_whole)
}

/// Requests a dump; returns true if it is consistent.
fn dump(
    socket: &Socket,
    request: RouteNetlinkMessage,
    mut each: impl FnMut(Answer),
) -> io::Result<bool> {
    let mut header = NetlinkHeader::default();
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut request = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    let mut whole = true;
    let mut part = Vec::with_capacity(PART);
    loop {
        part.clear();
        socket.recv(&mut part, 0)?;
        let mut rest = part.as_slice();
        while !rest.is_empty() {
            let message = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?;
            whole &= message.flags() & NLM_F_DUMP_INTR == 0;
            let length = usize::try_from(message.length()).map_err(io::Error::other)?;
            match NetlinkMessage::<Answer>::deserialize(rest).map(|m| m.payload) {
                Ok(NetlinkPayload::InnerMessage(message)) => each(message),
                Ok(NetlinkPayload::Done(_)) => return Ok(whole),
                Ok(NetlinkPayload::Error(error)) => return Err(error.to_io()),
                Ok(_) => {}
                // A message that cannot be read does not hide the others.
                Err(error) => {
                    tracing::debug!(%error, "cannot read the kernel's message about an interface or route");
                }
            }
            // Messages are aligned to four bytes.
            rest = rest.get(length.next_multiple_of(4)..).unwrap_or_default();
        }
    }
}

/// Returns the address with its network; `None` while the address must not be used.
fn network_of(message: &AddressMessage) -> Option<IpNet> {
    let mut local = None;
    let mut address = None;
    let mut flags = AddressFlags::from_bits_retain(message.header.flags.bits().into());
    for attribute in &message.attributes {
        match attribute {
            AddressAttribute::Local(ip) => local = Some(*ip),
            AddressAttribute::Address(ip) => address = Some(*ip),
            AddressAttribute::Flags(all) => flags |= *all,
            _ => {}
        }
    }
    let is_tentative =
        flags.contains(AddressFlags::Tentative) && !flags.contains(AddressFlags::Optimistic);
    if is_tentative || flags.contains(AddressFlags::Dadfailed) {
        return None;
    }
    match (local, address) {
        // The network belongs to the other end of the line and is not attached here.
        (Some(own), Some(other)) if own != other => Some(IpNet::from(own)),
        (Some(own), _) | (None, Some(own)) => IpNet::new(own, message.header.prefix_len).ok(),
        (None, None) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use super::*;

    fn mk_address(attributes: Vec<AddressAttribute>) -> AddressMessage {
        let mut message = AddressMessage::default();
        message.header.prefix_len = 24;
        message.attributes = attributes;
        message
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn an_address_counts_once_it_is_known_to_be_unique() {
        let with = |flags| {
            let address = AddressAttribute::Address(ip("192.168.7.2"));
            network_of(&mk_address(vec![address, AddressAttribute::Flags(flags)]))
        };
        let usable = Some("192.168.7.2/24".parse().unwrap());
        assert_eq!(with(AddressFlags::Permanent), usable);
        assert_eq!(
            with(AddressFlags::Tentative | AddressFlags::Optimistic),
            usable
        );
        assert_eq!(with(AddressFlags::Tentative), None);
        assert_eq!(with(AddressFlags::Dadfailed), None);
        assert_eq!(
            with(AddressFlags::Tentative | AddressFlags::Dadfailed),
            None
        );
    }

    #[test]
    fn the_network_of_the_other_end_of_a_line_is_not_attached() {
        let line = |local: &str, address: &str| {
            let local = AddressAttribute::Local(ip(local));
            network_of(&mk_address(vec![
                AddressAttribute::Address(ip(address)),
                local,
            ]))
        };
        assert_eq!(
            line("10.0.0.1", "10.9.0.2"),
            Some("10.0.0.1/32".parse().unwrap())
        );
        assert_eq!(
            line("10.0.0.1", "10.0.0.1"),
            Some("10.0.0.1/24".parse().unwrap())
        );
        assert_eq!(network_of(&mk_address(Vec::new())), None);
    }

    #[test]
    fn the_loopback_interface_is_read() {
        let interfaces = read().unwrap();
        let lo = interfaces.list.iter().find(|i| i.loopback).unwrap();
        assert_eq!((lo.name.as_str(), lo.index), ("lo", 1));
    }
}
