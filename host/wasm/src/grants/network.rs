//! The `network` section: which networks, hosts and ports a handler may reach. Read and checked; nothing is opened here.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;
use leafhost_core::configuration::FieldProblem;
use serde::Deserialize;

/// Where a handler may connect to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetworkGrants {
    /// Patterns of interface names; empty: the default ones.
    pub interfaces: Vec<String>,
    /// Datagrams.
    pub udp: Vec<NetPorts>,
    /// Groups it may be woken by.
    pub multicast: Vec<NetPorts>,
    /// Connections.
    pub tcp: Vec<NetPorts>,
    /// Requests.
    pub http: Vec<HostPorts>,
    /// How certificates are treated.
    pub tls: Tls,
}

/// How certificates are treated.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Tls {
    /// They must be good.
    #[default]
    Verify,
    /// Anything goes: devices sign their own.
    AcceptInvalid,
}

/// Ports from and to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ports {
    /// The first.
    pub first: u16,
    /// The last.
    pub last: u16,
}

/// A network and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NetPorts {
    /// The network; absent for `lan`, the networks directly attached to the granted interfaces.
    pub net: Option<IpNet>,
    /// The ports.
    pub ports: Ports,
}

/// A host and ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HostPorts {
    /// By network.
    Net(NetPorts),
    /// By name.
    Name(String, Ports),
}

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Section {
    interfaces: Vec<String>,
    udp: Vec<String>,
    multicast: Vec<String>,
    tcp: Vec<String>,
    http: Vec<String>,
    tls: Tls,
}

impl Section {
    pub(super) fn check(self, problems: &mut Vec<FieldProblem>) -> NetworkGrants {
        super::check_list("network.interfaces", &self.interfaces, problems);
        let groups: Vec<NetPorts> = entries("multicast", &self.multicast, problems);
        for (index, group) in groups.iter().enumerate() {
            let is_group = group.net.is_some_and(|net| {
                net.addr().is_multicast() && net.prefix_len() == net.max_prefix_len()
            });
            if !is_group {
                problems.push(FieldProblem::new(
                    format!("network.multicast[{index}]"),
                    "must be one group's address, such as \"239.255.255.250:3702\"",
                ));
            }
        }
        NetworkGrants {
            interfaces: self.interfaces,
            udp: entries("udp", &self.udp, problems),
            multicast: groups,
            tcp: entries("tcp", &self.tcp, problems),
            http: entries("http", &self.http, problems),
            tls: self.tls,
        }
    }
}

/// The entries that can be used; if one cannot, the file is refused, so the shift of indexes behind it is not seen.
fn entries<T: FromStr<Err = String>>(
    name: &str,
    list: &[String],
    problems: &mut Vec<FieldProblem>,
) -> Vec<T> {
    super::check_list(&format!("network.{name}"), list, problems);
    let mut entries = Vec::new();
    for (index, text) in list.iter().enumerate() {
        match text.parse() {
            Ok(entry) => entries.push(entry),
            Err(message) => problems.push(FieldProblem::new(
                format!("network.{name}[{index}]"),
                format!("{text:?} {message}"),
            )),
        }
    }
    entries
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("has the ports {text:?}; must be a port, `4840-4850`, or `*`");
        if text == "*" {
            return Ok(Self {
                first: 1,
                last: u16::MAX,
            });
        }
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let (first, last) = (first.parse().ok(), last.parse().ok());
        match (first, last) {
            (Some(first), Some(last)) if 0 < first && first <= last => Ok(Self { first, last }),
            _ => Err(wrong()),
        }
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.first, self.last) {
            (1, u16::MAX) => f.write_str("*"),
            (first, last) if first == last => write!(f, "{first}"),
            (first, last) => write!(f, "{first}-{last}"),
        }
    }
}

impl FromStr for NetPorts {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
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

/// `192.168.7.0/24`, `[ff02::c]/128`, or one address.
fn parse_net(text: &str) -> Result<IpNet, String> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (text, None),
    };
    let bare = match address.strip_prefix('[') {
        Some(rest) => rest.strip_suffix(']').ok_or("has a `[` without `]`")?,
        None if address.contains(':') => {
            return Err(
                "has an IPv6 address without brackets; write \"[ff02::c]/128:3702\"".into(),
            );
        }
        None => address,
    };
    let parsed: IpAddr = bare
        .parse()
        .map_err(|_| format!("has {bare:?}, which is no IP address"))?;
    let most = if parsed.is_ipv4() { 32 } else { 128 };
    let length = match length {
        Some(text) => text
            .parse()
            .ok()
            .filter(|length| *length <= most)
            .ok_or_else(|| format!("has the prefix length {text:?}; must be 0 to {most}"))?,
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
        let (host, ports) = text.rsplit_once(':').ok_or(
            "must be HOST:PORTS, CIDR:PORTS or lan:PORTS, such as \"api.example.com:443\"",
        )?;
        let label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .bytes()
                    .all(|b| b.is_ascii_alphanumeric() || b == b'-')
                && !label.starts_with('-')
                && !label.ends_with('-')
        };
        let numeric = host.bytes().all(|b| b.is_ascii_digit() || b == b'.');
        if host != "lan" && !numeric && host.len() <= 253 && host.split('.').all(label) {
            return Ok(Self::Name(host.to_ascii_lowercase(), ports.parse()?));
        }
        text.parse().map(Self::Net)
    }
}
