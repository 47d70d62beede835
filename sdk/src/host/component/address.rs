//! Converts addresses and errors of `wasi:sockets` to those of the SDK, and resolves names.

use std::net::{IpAddr, SocketAddr, SocketAddrV6};
use std::rc::Rc;

use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::ip_name_lookup::resolve_addresses;
use wasip2::sockets::network::{
    ErrorCode, IpAddress, IpAddressFamily, IpSocketAddress, Ipv4SocketAddress, Ipv6SocketAddress,
};

use super::reactor::Reactor;
use crate::net::Error;

/// Maximum number of addresses per name.
const ADDRESSES: usize = 64;

pub fn family(address: SocketAddr) -> IpAddressFamily {
    match address {
        SocketAddr::V4(_) => IpAddressFamily::Ipv4,
        SocketAddr::V6(_) => IpAddressFamily::Ipv6,
    }
}

pub fn to_wasi(address: SocketAddr) -> IpSocketAddress {
    match address {
        SocketAddr::V4(address) => IpSocketAddress::Ipv4(Ipv4SocketAddress {
            port: address.port(),
            address: address.ip().octets().into(),
        }),
        SocketAddr::V6(address) => IpSocketAddress::Ipv6(Ipv6SocketAddress {
            port: address.port(),
            flow_info: address.flowinfo(),
            address: address.ip().segments().into(),
            scope_id: address.scope_id(),
        }),
    }
}

pub fn from_wasi(address: IpSocketAddress) -> SocketAddr {
    match address {
        IpSocketAddress::Ipv4(address) => {
            SocketAddr::from((<[u8; 4]>::from(address.address), address.port))
        }
        IpSocketAddress::Ipv6(address) => SocketAddr::V6(SocketAddrV6::new(
            <[u16; 8]>::from(address.address).into(),
            address.port,
            address.flow_info,
            address.scope_id,
        )),
    }
}

/// Converts an error of the operation `what`, such as `udp 192.168.7.9:3702`.
pub fn error(code: ErrorCode, what: impl FnOnce() -> String) -> Error {
    match code {
        ErrorCode::AccessDenied => Error::Denied(what()),
        ErrorCode::Timeout => Error::TimedOut,
        ErrorCode::ConnectionRefused => Error::Refused,
        ErrorCode::RemoteUnreachable => Error::Unreachable,
        ErrorCode::ConnectionReset | ErrorCode::ConnectionAborted => Error::Closed,
        code => Error::Other(format!("{}: {}", what(), code.name())),
    }
}

pub async fn resolve(reactor: &Reactor, name: &str) -> Result<Vec<IpAddr>, Error> {
    let failed = |code| match code {
        ErrorCode::NameUnresolvable => Error::Name(format!("{name:?}: no such name")),
        ErrorCode::TemporaryResolverFailure | ErrorCode::PermanentResolverFailure => {
            Error::Name(format!("{name:?}: the resolver failed"))
        }
        code => error(code, || format!("name {name}")),
    };
    let network = instance_network();
    let stream = resolve_addresses(&network, name).map_err(failed)?;
    let ready = Rc::new(stream.subscribe());
    let mut addresses = Vec::new();
    while addresses.len() < ADDRESSES {
        match stream.resolve_next_address() {
            Ok(Some(IpAddress::Ipv4(address))) => {
                addresses.push(IpAddr::from(<[u8; 4]>::from(address)));
            }
            Ok(Some(IpAddress::Ipv6(address))) => {
                addresses.push(IpAddr::from(<[u16; 8]>::from(address)));
            }
            Ok(None) => break,
            Err(ErrorCode::WouldBlock) => reactor.ready(&ready).await,
            Err(code) => return Err(failed(code)),
        }
    }
    if addresses.is_empty() {
        return Err(failed(ErrorCode::NameUnresolvable));
    }
    Ok(addresses)
}
