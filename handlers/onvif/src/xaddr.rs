//! Addresses that a camera announces: which are usable, and which one identifies the camera. The decision depends on the
//! text alone, so that all nodes decide alike.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Maximum number of bytes in an address.
const MAX_BYTES: usize = 512;

/// Usable address of a camera.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct XAddr {
    /// Announced text.
    pub url: String,
    pub host: Host,
    is_tls: bool,
    /// URL of requests, without a fragment.
    pub target: String,
    /// Path and query, which an HTTP digest covers.
    pub path: String,
}

/// Host of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Host {
    /// IP address.
    Ip(IpAddr),
    /// Name in lower case.
    Name(String),
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(ip) => ip.fmt(f),
            Self::Name(name) => f.write_str(name),
        }
    }
}

/// Reason why an address is not used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Text that is not an absolute http or https URL of a common form.
    #[error("is not an http or https URL with a host")]
    Form,
    /// URL with a user name, which may look like the host.
    #[error("has a user name")]
    User,
    /// Loopback, unspecified, broadcast or multicast address.
    #[error("does not lead to a device")]
    Nowhere,
    /// Address with a different meaning on every machine.
    #[error("is a link-local IPv6 address, which is another machine on each network")]
    LinkLocal,
}

impl XAddr {
    /// Parses an address.
    pub fn new(text: &str) -> Result<Self, Error> {
        if text.len() > MAX_BYTES || !text.bytes().all(|b| b.is_ascii_graphic()) {
            return Err(Error::Form);
        }
        let (scheme, rest) = text.split_once("://").ok_or(Error::Form)?;
        let is_tls = match scheme.to_ascii_lowercase().as_str() {
            "http" => false,
            "https" => true,
            _ => return Err(Error::Form),
        };
        let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        if authority.contains(['@', '\\']) {
            return Err(Error::User);
        }
        let host = host(authority)?;
        if let Host::Ip(ip) = &host {
            check(*ip)?;
        } else if host == Host::Name("localhost".to_owned()) {
            return Err(Error::Nowhere);
        }
        let path = path.split('#').next().unwrap_or_default();
        let path = if path.starts_with('/') {
            path.to_owned()
        } else {
            format!("/{path}")
        };
        let scheme = if is_tls { "https" } else { "http" };
        Ok(Self {
            url: text.to_owned(),
            host,
            is_tls,
            target: format!("{scheme}://{authority}{path}"),
            path,
        })
    }

    /// Returns the rank among a camera's addresses; lower is better.
    fn rank(&self) -> u8 {
        match self.host {
            Host::Ip(IpAddr::V4(ip)) if ip.is_link_local() => 2,
            Host::Ip(IpAddr::V4(_)) if !self.is_tls => 0,
            _ => 1,
        }
    }

    /// Returns the address of another service of the camera: as the camera reports it if that has the same host, otherwise with
    /// this host and port.
    pub fn service(&self, told: &str) -> Option<Self> {
        if let Ok(xaddr) = Self::new(told)
            && xaddr.host == self.host
        {
            return Some(xaddr);
        }
        let (_, rest) = told.split_once("://")?;
        let path = rest.find('/').and_then(|at| rest.get(at..)).unwrap_or("/");
        let own = self.target.strip_suffix(self.path.as_str())?;
        Self::new(&format!("{own}{path}")).ok()
    }

    /// Returns the same port and path at another host; `None` if other machines cannot use that host.
    pub fn at_host(&self, ip: IpAddr) -> Option<Self> {
        let (scheme, rest) = self.target.split_once("://")?;
        let authority = rest.strip_suffix(self.path.as_str())?;
        let (_, after) = authority.rsplit_once(']').unwrap_or(("", authority));
        let port = after.find(':').and_then(|at| after.get(at..));
        let host = match ip {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("[{ip}]"),
        };
        let port = port.unwrap_or_default();
        Self::new(&format!("{scheme}://{host}{port}{}", self.path)).ok()
    }

    /// Returns true if this address has this IP address as its host.
    pub fn is_at(&self, ip: IpAddr) -> bool {
        self.host == Host::Ip(ip)
    }
}

/// Returns the host of an authority, such as `192.168.7.9:80`.
pub fn host(authority: &str) -> Result<Host, Error> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (inside, port) = rest.split_once(']').ok_or(Error::Form)?;
        check_port(port)?;
        let (ip, zone) = inside.split_once('%').unwrap_or((inside, ""));
        let ip: Ipv6Addr = ip.parse().map_err(|_| Error::Form)?;
        if !zone.is_empty() {
            return Err(Error::LinkLocal);
        }
        return Ok(Host::Ip(IpAddr::V6(ip).to_canonical()));
    }
    let end = authority.find(':').unwrap_or(authority.len());
    let (name, port) = authority.split_at(end);
    check_port(port)?;
    if let Ok(ip) = name.parse::<Ipv4Addr>() {
        return Ok(Host::Ip(ip.into()));
    }
    // Many parsers read a name that ends in a number as IPv4: `127.1`, `0x7f.0.0.1`, `2130706433`.
    let last = name
        .trim_end_matches('.')
        .rsplit('.')
        .next()
        .unwrap_or_default();
    let is_number = last.starts_with(|c: char| c.is_ascii_digit());
    let in_name = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'.' | b'_');
    if name.is_empty() || name.len() > 253 || is_number || !name.bytes().all(in_name) {
        return Err(Error::Form);
    }
    Ok(Host::Name(name.to_ascii_lowercase()))
}

fn check_port(port: &str) -> Result<(), Error> {
    let Some(port) = port.strip_prefix(':') else {
        return if port.is_empty() {
            Ok(())
        } else {
            Err(Error::Form)
        };
    };
    let is_port =
        port.bytes().all(|b| b.is_ascii_digit()) && port.parse().is_ok_and(|port: u16| port > 0);
    if is_port || port.is_empty() {
        Ok(())
    } else {
        Err(Error::Form)
    }
}

fn check(ip: IpAddr) -> Result<(), Error> {
    let is_nowhere = ip.is_loopback() || ip.is_unspecified() || ip.is_multicast();
    match ip {
        _ if is_nowhere => Err(Error::Nowhere),
        IpAddr::V4(ip) if ip.is_broadcast() || ip.octets().first() == Some(&0) => {
            Err(Error::Nowhere)
        }
        IpAddr::V6(ip) if ip.is_unicast_link_local() => Err(Error::LinkLocal),
        _ => Ok(()),
    }
}

/// Returns the address that identifies a camera: the first http one with an IPv4 host that is not link-local, otherwise the
/// first that is not link-local IPv4, otherwise the first.
pub fn choose(announced: &[String]) -> Option<XAddr> {
    usable(announced).min_by_key(XAddr::rank)
}

/// Returns the best of these addresses that has this host.
pub fn choose_at(announced: &[String], ip: IpAddr) -> Option<XAddr> {
    usable(announced)
        .filter(|xaddr| xaddr.is_at(ip))
        .min_by_key(XAddr::rank)
}

fn usable(announced: &[String]) -> impl Iterator<Item = XAddr> {
    announced.iter().filter_map(|text| XAddr::new(text).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_address_that_other_hosts_can_use_is_chosen() {
        for (announced, chosen) in [
            (
                "http://192.168.7.9/onvif/device_service http://[fe80::1]/onvif/device_service",
                Some("http://192.168.7.9/onvif/device_service"),
            ),
            (
                "http://[fe80::1]/a http://192.168.7.9/a",
                Some("http://192.168.7.9/a"),
            ),
            // Axis announces http and https, also for the address it assigned itself.
            (
                "https://169.254.9.9/a http://169.254.9.9/a https://192.168.7.9/a http://192.168.7.9/a",
                Some("http://192.168.7.9/a"),
            ),
            (
                "https://192.168.7.9/a http://[2001:db8::1]/a",
                Some("https://192.168.7.9/a"),
            ),
            (
                "http://[2001:db8::1]:8080/a https://192.168.7.9/a",
                Some("http://[2001:db8::1]:8080/a"),
            ),
            (
                "http://192.168.7.9:80/a http://192.168.7.9/a",
                Some("http://192.168.7.9:80/a"),
            ),
            ("http://camera.lan/a", Some("http://camera.lan/a")),
            (
                "http://169.254.9.9/a https://169.254.9.9/a",
                Some("http://169.254.9.9/a"),
            ),
            (
                "http://127.0.0.1/a http://192.168.7.9/a",
                Some("http://192.168.7.9/a"),
            ),
            ("http://[fe80::1]/a http://[fe80::1%25eth0]/a", None),
            ("http://127.0.0.1/a", None),
            ("", None),
        ] {
            let list: Vec<String> = announced.split(' ').map(str::to_owned).collect();
            assert_eq!(
                choose(&list).map(|xaddr| xaddr.url).as_deref(),
                chosen,
                "{announced}"
            );
        }
    }

    #[test]
    fn unusable_addresses_are_refused() {
        for (text, error) in [
            ("http://127.0.0.1/", Error::Nowhere),
            ("http://127.1/", Error::Form),
            ("http://2130706433/", Error::Form),
            ("http://0x7f.0.0.0x1/", Error::Form),
            ("http://0.0.0.0/", Error::Nowhere),
            ("http://255.255.255.255/", Error::Nowhere),
            ("http://239.255.255.250/", Error::Nowhere),
            ("http://[::1]/", Error::Nowhere),
            ("http://[::ffff:127.0.0.1]/", Error::Nowhere),
            ("http://LOCALHOST/", Error::Nowhere),
            ("http://[ff02::c]/", Error::Nowhere),
            ("http://[fe80::1%25eth0]/", Error::LinkLocal),
            ("http://192.168.7.9@evil/", Error::User),
            ("http://admin:secret@192.168.7.9/", Error::User),
            ("http://evil\\@192.168.7.9/", Error::User),
            ("ftp://192.168.7.9/", Error::Form),
            ("192.168.7.9", Error::Form),
            ("http://", Error::Form),
            ("http:///a", Error::Form),
            ("http://192.168.7.9:0/", Error::Form),
            ("http://192.168.7.9:65536/", Error::Form),
            ("http://192.168.7.9:+80/", Error::Form),
            ("http://[2001:db8::1/", Error::Form),
            ("http://[2001:db8::1]x/", Error::Form),
            ("http://a b/", Error::Form),
            ("http://caf\u{e9}/", Error::Form),
        ] {
            assert_eq!(XAddr::new(text), Err(error), "{text}");
        }
        let long = format!("http://192.168.7.9/{}", "a".repeat(MAX_BYTES));
        assert_eq!(XAddr::new(&long), Err(Error::Form));
    }

    #[test]
    fn another_service_is_asked_at_the_same_host() {
        let xaddr = XAddr::new("http://192.168.7.9:8080/onvif/device_service").unwrap();
        for (told, target) in [
            (
                "http://192.168.7.9/onvif/Media",
                Some("http://192.168.7.9/onvif/Media"),
            ),
            (
                "http://10.0.0.9:81/onvif/Media?a",
                Some("http://192.168.7.9:8080/onvif/Media?a"),
            ),
            (
                "http://127.0.0.1/onvif/Media",
                Some("http://192.168.7.9:8080/onvif/Media"),
            ),
            ("http://10.0.0.9", Some("http://192.168.7.9:8080/")),
            ("/onvif/Media", None),
            ("http://10.0.0.9/a b", None),
        ] {
            let service = xaddr.service(told).map(|one| one.target);
            assert_eq!(service.as_deref(), target, "{told}");
        }
    }

    #[test]
    fn port_and_path_stay_at_another_host() {
        for (url, ip, other) in [
            (
                "http://10.0.0.1:8080/a?b",
                "192.168.7.9",
                Some("http://192.168.7.9:8080/a?b"),
            ),
            (
                "https://camera.lan/a",
                "192.168.7.9",
                Some("https://192.168.7.9/a"),
            ),
            (
                "http://[2001:db8::1]:81/a",
                "192.168.7.9",
                Some("http://192.168.7.9:81/a"),
            ),
            (
                "http://10.0.0.1",
                "2001:db8::1",
                Some("http://[2001:db8::1]/"),
            ),
            ("http://10.0.0.1/a", "fe80::1", None),
            ("http://10.0.0.1/a", "127.0.0.1", None),
        ] {
            let moved = XAddr::new(url).unwrap().at_host(ip.parse().unwrap());
            assert_eq!(moved.map(|one| one.url).as_deref(), other, "{url}");
        }
    }

    #[test]
    fn an_http_digest_covers_path_and_query() {
        for (url, path) in [
            ("http://192.168.7.9", "/"),
            ("http://192.168.7.9?a=b", "/?a=b"),
            (
                "http://192.168.7.9:8080/onvif/device_service?a=b#c",
                "/onvif/device_service?a=b",
            ),
        ] {
            assert_eq!(XAddr::new(url).unwrap().path, path);
        }
        let xaddr = XAddr::new("HTTP://192.168.7.9:8080?a=b#c").unwrap();
        assert_eq!(xaddr.target, "http://192.168.7.9:8080/?a=b");
    }
}
