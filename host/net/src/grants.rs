//! The `network` section of a grants file as values: the networks, hosts and ports that a handler may reach. Opens no socket.

use std::net::{IpAddr, Ipv6Addr};
use std::str::FromStr;

use ipnet::IpNet;

use crate::policy::is_host;

/// Network access granted to a handler.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NetworkGrants {
    /// Patterns of interface names; if empty, the default interfaces are granted.
    pub interfaces: Vec<String>,
    /// Networks and ports for UDP datagrams.
    pub udp: Vec<NetPorts>,
    /// Multicast groups whose datagrams may wake the handler.
    pub multicast: Vec<NetPorts>,
    /// Networks and ports for TCP connections.
    pub tcp: Vec<NetPorts>,
    /// Hosts and ports for HTTP requests.
    pub http: Vec<HostPorts>,
    /// Patterns of host names that may be looked up; the names of `http` entries are always allowed.
    pub names: Vec<String>,
    /// Handling of certificates.
    pub tls: Tls,
}

/// Handling of the certificates of HTTPS servers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum Tls {
    /// Valid certificates only: signed by one of the machine's authorities for that name.
    #[default]
    Verify,
    /// Only this certificate, by the SHA-256 of its DER form, regardless of its issuer.
    Pin([u8; 32]),
    /// Any certificate: the peer may be anyone.
    Insecure,
}

/// Inclusive range of ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// First port.
    pub first: u16,
    /// Last port.
    pub last: u16,
}

/// A network and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetPorts {
    /// Network, or `None` for `lan`: the networks directly attached to the granted interfaces.
    pub net: Option<IpNet>,
    /// Ports in the network.
    pub ports: Ports,
}

/// A host and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPorts {
    /// Hosts by network.
    Net(NetPorts),
    /// Host by name.
    Name(String, Ports),
}

impl FromStr for Tls {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.strip_prefix("pin:")) {
            ("verify", _) => Ok(Self::Verify),
            ("insecure", _) => Ok(Self::Insecure),
            (_, Some(digest)) => digest_of(digest).map(Self::Pin).ok_or_else(|| {
                "has a pin that is not a SHA-256; must be 64 hexadecimal digits, colons allowed"
                    .to_owned()
            }),
            _ => Err("must be `verify`, `insecure` or `pin:` and the certificate's SHA-256".into()),
        }
    }
}

fn digest_of(text: &str) -> Option<[u8; 32]> {
    let digits = text.chars().filter(|c| *c != ':');
    let digits = digits.map(|c| u8::try_from(c.to_digit(16)?).ok());
    let digits = digits.collect::<Option<Vec<u8>>>()?;
    let (pairs, rest) = digits.as_chunks();
    let bytes: Vec<u8> = pairs.iter().map(|[high, low]| high * 16 + low).collect();
    bytes.try_into().ok().filter(|_| rest.is_empty())
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "*" {
            return Ok(Self {
                first: 1,
                last: u16::MAX,
            });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        match (number(first), number(last)) {
            (Some(first), Some(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(format!(
                "has the ports {text:?}; must be a port, `4840-4850`, or `*`, in digits without a sign or a zero in front"
            )),
        }
    }
}

/// Parses a decimal number without a sign or leading zero: either may be a typo, and other programs read a leading zero as octal.
fn number<T: FromStr>(text: &str) -> Option<T> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit());
    let has_zero = text.len() > 1 && text.starts_with('0');
    text.parse().ok().filter(|_| is_plain && !has_zero)
}

impl Ports {
    /// Returns true if the port is in the range.
    pub fn contain(&self, port: u16) -> bool {
        (self.first..=self.last).contains(&port)
    }
}

impl FromStr for NetPorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        refuse_url(text)?;
        let (net, ports) = text
            .rsplit_once(':')
            .ok_or("must be CIDR:PORTS or lan:PORTS, such as \"192.168.7.0/24:4840\"")?;
        let ports = ports.parse()?;
        if net == "lan" {
            return Ok(Self { net: None, ports });
        }
        Ok(Self {
            net: Some(parse_net(net)?),
            ports,
        })
    }
}

/// Fails if the text is a URL.
fn refuse_url(text: &str) -> Result<(), String> {
    if text.contains("://") {
        return Err("is a URL; write its host and port, such as \"10.20.0.5:4840\"".to_owned());
    }
    Ok(())
}

/// Parses a network such as `192.168.7.0/24` or `[ff02::c]/128`, or a single address.
fn parse_net(text: &str) -> Result<IpNet, String> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let bare = match address.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or("has a `[` without `]`")?,
        None if address.parse::<Ipv6Addr>().is_ok() => {
            return Err(
                "has an IPv6 address without brackets; write \"[ff02::c]/128:3702\"".into(),
            );
        }
        None => address,
    };
    let parsed: IpAddr = bare
        .parse()
        .map_err(|_| format!("has {bare:?}, which is not an IP address"))?;
    let most = if parsed.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(text) => number(text)
            .filter(|length| *length <= most)
            .ok_or_else(|| {
                format!(
                    "has the prefix length {text:?}; must be 0 to {most}, in digits without a sign or a zero in front"
                )
            })?,
        None => most,
    };
    let net = IpNet::new(parsed, length).map_err(|error| error.to_string())?;
    if net.addr() != net.network() {
        return Err(format!(
            "has address bits behind the prefix; the network is {}",
            net.trunc()
        ));
    }
    Ok(net)
}

impl FromStr for HostPorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        refuse_url(text)?;
        let (host, ports) = text.rsplit_once(':').ok_or(
            "must be HOST:PORTS, CIDR:PORTS or lan:PORTS, such as \"api.example.com:443\"",
        )?;
        let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if host != "lan" && !numeric && is_host(host) && !host.contains('_') {
            return Ok(Self::Name(host.to_ascii_lowercase(), ports.parse()?));
        }
        text.parse().map(Self::Net)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_that_cannot_be_meant_are_refused() {
        for good in [
            "lan:80",
            "lan:*",
            "192.168.7.0/24:4840-4850",
            "192.168.7.9:80",
            "[ff02::c]/128:3702",
            "[ff02::c]:3702",
        ] {
            assert!(good.parse::<NetPorts>().is_ok(), "{good}");
        }
        for bad in [
            "lan",
            "192.168.7.0/24",
            "192.168.7.9/24:80",
            "192.168.7.0/33:80",
            "192.168.7.0/-1:80",
            "192.168.7:80",
            "ff02::c:3702",
            "[ff02::c:3702",
            "[ff02::c]/129:3702",
            "[fe80::1%2]:80",
            "lan:0",
            "lan:0-80",
            "lan:81-80",
            "lan:65536",
            "lan:+80",
            "lan:080",
            "lan:80-+90",
            "lan: 80",
            "10.0.0.0/08:80",
            "10.0.0.0/+8:80",
            "[::]/00:80",
            "lan:80,81",
            "api.example.com:443",
        ] {
            assert!(bad.parse::<NetPorts>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_host_is_a_name_or_a_network() {
        let ports = Ports {
            first: 443,
            last: 443,
        };
        let name = |text: &str| Ok(HostPorts::Name(text.to_owned(), ports));
        assert_eq!("API.example.com:443".parse(), name("api.example.com"));
        assert_eq!("camera:443".parse(), name("camera"));
        let net = |net: Option<&str>| {
            let net = net.map(|net| net.parse().unwrap());
            Ok(HostPorts::Net(NetPorts { net, ports }))
        };
        assert_eq!("lan:443".parse(), net(None));
        assert_eq!("10.0.0.0/8:443".parse(), net(Some("10.0.0.0/8")));
        for bad in [
            "10.0.0:443",
            "-a:443",
            "a-.b:443",
            "a..b:443",
            "*.a:443",
            "a",
        ] {
            assert!(bad.parse::<HostPorts>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_pin_is_a_whole_digest() {
        let digest = "ab".repeat(32);
        assert_eq!(format!("pin:{digest}").parse(), Ok(Tls::Pin([0xab; 32])));
        let colons = ["AB"; 32].join(":");
        assert_eq!(format!("pin:{colons}").parse(), Ok(Tls::Pin([0xab; 32])));
        for bad in [
            "pin:",
            "pin:abc",
            &digest,
            &format!("pin:{digest}ab"),
            "Verify",
        ] {
            assert!(bad.parse::<Tls>().is_err(), "{bad}");
        }
    }
}
