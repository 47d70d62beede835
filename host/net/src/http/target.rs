//! The target of a request: parses host, zone, port and path from its URI. Resolves nothing but the index of an interface.

use std::fmt;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, SocketAddrV6};

use http::Uri;
use http::uri::PathAndQuery;

use super::HttpError;
use crate::policy::{is_host, is_peer};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Target {
    pub(super) host: Host,
    pub(super) port: u16,
    pub(super) tls: bool,
    pub(super) path: PathAndQuery,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Host {
    /// Address with port 0, and with the index of its interface if it is link-local.
    Address(SocketAddr),
    /// Name in lower case, without a trailing dot.
    Name(String),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.ip().fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl Target {
    pub(super) fn of(uri: &Uri) -> Result<Self, HttpError> {
        let tls = match uri.scheme_str() {
            Some("http") => false,
            Some("https") => true,
            _ => return Err(wrong("its URL must begin with http:// or https://")),
        };
        let authority = uri
            .authority()
            .ok_or_else(|| wrong("its URL has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("its URL has a user name; put it into a header"));
        }
        let host = authority.host();
        let port = authority.as_str().strip_prefix(host).unwrap_or_default();
        let port = match port.trim_start_matches(':') {
            "" => default_port(tls),
            digits => match digits.parse::<u16>() {
                Ok(port) if port != 0 && !digits.starts_with('+') => port,
                _ => return Err(wrong("its URL has no port from 1 to 65535")),
            },
        };
        let path = uri
            .path_and_query()
            .cloned()
            .unwrap_or(PathAndQuery::from_static("/"));
        Ok(Self {
            host: Host::of(host)?,
            port,
            tls,
            path,
        })
    }

    /// Returns the value of `Host`: no zone, and the port only if it is not the scheme's default.
    pub(super) fn authority(&self) -> String {
        let host = match &self.host {
            Host::Address(SocketAddr::V6(address)) => format!("[{}]", address.ip()),
            other => other.to_string(),
        };
        if self.port == default_port(self.tls) {
            host
        } else {
            format!("{host}:{}", self.port)
        }
    }
}

fn default_port(tls: bool) -> u16 {
    if tls { 443 } else { 80 }
}

fn wrong(text: &str) -> HttpError {
    HttpError::Request(text.to_owned())
}

impl Host {
    fn of(text: &str) -> Result<Self, HttpError> {
        if let Some(inner) = text.strip_prefix('[') {
            let inner = inner
                .strip_suffix(']')
                .ok_or_else(|| wrong("its URL has a `[` without `]`"))?;
            let (ip, zone) = match inner.split_once('%') {
                Some((ip, zone)) => (ip, Some(zone)),
                None => (inner, None),
            };
            let ip: Ipv6Addr = ip
                .parse()
                .map_err(|_| wrong("its URL has no IPv6 address between the brackets"))?;
            return Self::address(ip.to_canonical(), zone);
        }
        if let Ok(ip) = text.parse::<IpAddr>() {
            return Self::address(ip, None);
        }
        let name = text.strip_suffix('.').unwrap_or(text).to_ascii_lowercase();
        check_name(&name).map_err(|reason| wrong(&format!("its URL's host {reason}")))?;
        Ok(Self::Name(name))
    }

    fn address(ip: IpAddr, zone: Option<&str>) -> Result<Self, HttpError> {
        if !is_peer(ip) {
            return Err(wrong(&format!("{ip} is not an address of a peer")));
        }
        let address = match (ip, zone) {
            (IpAddr::V6(v6), Some(zone)) if v6.is_unicast_link_local() => {
                SocketAddr::V6(SocketAddrV6::new(v6, 0, 0, index_of(zone)?))
            }
            (_, Some(_)) => return Err(wrong(&format!("{ip} is not link-local and has no zone"))),
            (IpAddr::V6(v6), None) if v6.is_unicast_link_local() => {
                return Err(wrong(&format!(
                    "{ip} is link-local and needs its interface, as in [{ip}%25eth0]"
                )));
            }
            (_, None) => SocketAddr::new(ip, 0),
        };
        Ok(Self::Address(address))
    }
}

/// Returns the index of a zone. A zone is written after `%25`; some peers and programs write it after `%` alone.
fn index_of(zone: &str) -> Result<u32, HttpError> {
    let zone = zone
        .strip_prefix("25")
        .filter(|rest| !rest.is_empty())
        .unwrap_or(zone);
    if let Ok(index) = zone.parse() {
        return Ok(index);
    }
    nix::net::if_::if_nametoindex(zone)
        .map_err(|_| wrong(&format!("this machine has no interface {zone:?}")))
}

/// Checks that the resolver may be asked for the name. A last label of digits is an address in a form that only some parsers accept
/// (`127.1`, `0x7f000001`); it is refused, so that the checked address is the intended one.
pub(super) fn check_name(name: &str) -> Result<(), &'static str> {
    if !is_host(name) {
        return Err("is not a host name");
    }
    let last = name.rsplit('.').next().unwrap_or(name);
    let hex = |rest: &str| rest.bytes().all(|b| b.is_ascii_hexdigit());
    let number =
        last.bytes().all(|b| b.is_ascii_digit()) || last.strip_prefix("0x").is_some_and(hex);
    if number {
        return Err("is an address in an unsupported form; write all four numbers");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
