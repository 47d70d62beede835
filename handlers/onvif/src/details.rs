//! `discoveryDetails`: Akri's fields and our additions.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::time::Duration;

use leafhost_sdk::Problem;
use leafhost_sdk::net::Address;

use crate::filter::mac;

/// Maximum of `discoveryTimeoutSeconds`: the call also needs time to ask the cameras.
const MAX_TIMEOUT_SECONDS: i64 = 10;

/// Maximum number of addresses that are probed one by one.
const MAX_ADDRESSES: usize = 1_024;
/// Minimum prefix length of a network that is probed address by address.
const MIN_PREFIX: u8 = 22;
/// Port of WS-Discovery.
const PORT: u16 = 3702;

/// `discoveryDetails` of the handler.
#[leafhost_sdk::details]
#[derive(Debug, Clone)]
pub struct Details {
    /// Filter of cameras by address.
    pub ip_addresses: Option<FilterList>,
    /// Filter of cameras by hardware address.
    pub mac_addresses: Option<FilterList>,
    /// Filter of cameras by scope.
    pub scopes: Option<FilterList>,
    /// Filter of cameras by UUID.
    pub uuids: Option<FilterList>,
    /// Seconds to wait for answers to a probe, beyond the half second that devices may wait themselves.
    #[serde(default = "default_timeout")]
    discovery_timeout_seconds: i64,
    /// Selection of a camera's addresses that become devices.
    #[serde(rename = "leafhost.dev/xaddrs", default)]
    pub xaddrs: XAddrs,
    /// Source of a device's id.
    #[serde(rename = "leafhost.dev/identity", default)]
    pub identity: Identity,
    /// True if the cameras are asked for the URLs of their streams and snapshots.
    #[serde(default)]
    pub streams: bool,
    /// Devices of a camera with several video sources.
    #[serde(default)]
    pub channels: Channels,
    /// Addresses and networks to probe one by one.
    #[serde(default)]
    addresses: Vec<String>,
}

/// Filter with an action and values.
#[leafhost_sdk::details]
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FilterList {
    /// Effect on matching cameras.
    #[serde(default)]
    pub action: Action,
    /// Values to compare with.
    pub items: Vec<String>,
}

/// Effect of a filter on matching cameras.
#[leafhost_sdk::details]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Action {
    /// Keeps only matching cameras.
    #[default]
    Include,
    /// Leaves out matching cameras.
    Exclude,
}

/// Selection of a camera's addresses that become devices.
#[leafhost_sdk::details]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum XAddrs {
    /// First address that other machines can use.
    #[default]
    First,
    /// All addresses, as in Akri.
    All,
}

/// Source of a device's id.
#[leafhost_sdk::details]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub enum Identity {
    /// Address and endpoint reference, as in Akri: another address makes another device.
    #[default]
    Url,
    /// Endpoint reference alone.
    EndpointReference,
}

/// Devices of a camera with several video sources, such as a recorder.
#[leafhost_sdk::details]
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
pub enum Channels {
    /// One device.
    #[default]
    One,
    /// One device for each video source.
    Devices,
}

fn default_timeout() -> i64 {
    1
}

impl Details {
    /// Returns the problems of details that have the right shape.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.discovery_timeout_seconds < 0 {
            problems.push(Problem::new(
                "discoveryTimeoutSeconds",
                "must not be negative",
            ));
        }
        if (self.xaddrs, self.identity) == (XAddrs::All, Identity::EndpointReference) {
            problems.push(Problem::new(
                "leafhost.dev/xaddrs",
                "must be `first` where leafhost.dev/identity is `endpoint-reference`, which makes one device of a camera",
            ));
        }
        let mut count = 0;
        for (place, item) in self.addresses.iter().enumerate() {
            match Target::new(item) {
                Ok(target) => count += target.addresses().count(),
                Err(why) => problems.push(Problem::new(
                    format!("addresses[{place}]"),
                    format!("{item:?} {why}"),
                )),
            }
        }
        if count > MAX_ADDRESSES {
            problems.push(Problem::new(
                "addresses",
                format!("are {count} addresses, at most {MAX_ADDRESSES}; list fewer"),
            ));
        }
        let items = self.ip_addresses.iter().flat_map(|list| &list.items);
        for (place, item) in items.enumerate() {
            if item.contains('/') && network(item).is_none() {
                problems.push(Problem::new(
                    format!("ipAddresses.items[{place}]"),
                    format!("{item:?} is not a network; write one such as 192.168.7.0/24"),
                ));
            }
        }
        problems
    }

    /// Returns remarks on filters that no camera passes, and on items that equal no value of a camera.
    pub fn remarks(&self) -> Vec<Problem> {
        let mut remarks = Vec::new();
        for (field, list) in [
            ("ipAddresses", &self.ip_addresses),
            ("macAddresses", &self.mac_addresses),
            ("scopes", &self.scopes),
            ("uuids", &self.uuids),
        ] {
            let Some(list) = list else {
                continue;
            };
            if list.action == Action::Include && list.items.is_empty() {
                let what = "includes nothing, so that no camera is a device; remove it, or write action: Exclude";
                remarks.push(Problem::new(field, what));
            }
            for (place, item) in list.items.iter().enumerate() {
                let path = format!("{field}.items[{place}]");
                let why = strange(field, item);
                remarks.extend(why.map(|why| Problem::new(path, format!("{item:?} {why}"))));
            }
        }
        remarks
    }

    /// Returns a note if a value is reduced to its upper bound.
    pub fn note(&self) -> Option<String> {
        let seconds = self.discovery_timeout_seconds;
        (seconds > MAX_TIMEOUT_SECONDS).then(|| {
            format!("discoveryTimeoutSeconds: {seconds} is reduced to {MAX_TIMEOUT_SECONDS}, the maximum for a call")
        })
    }

    /// Returns the time to wait for answers to a probe, beyond the half second that devices may wait themselves.
    pub fn timeout(&self) -> Duration {
        let seconds = self.discovery_timeout_seconds.clamp(0, MAX_TIMEOUT_SECONDS);
        Duration::from_secs(seconds.unsigned_abs())
    }

    /// Returns the addresses and networks to probe one by one.
    pub fn targets(&self) -> Vec<Target> {
        let items = self.addresses.iter();
        items.filter_map(|item| Target::new(item).ok()).collect()
    }

    /// Returns the addresses that `ipAddresses` includes, without networks.
    pub fn included(&self) -> impl Iterator<Item = IpAddr> {
        let lists = self.ip_addresses.iter();
        let items = lists
            .filter(|list| list.action == Action::Include)
            .flat_map(|list| &list.items);
        items.filter_map(|item| item.trim().parse().ok())
    }

    /// Returns true if the operator named this host as that of a camera. A network does not count as naming a host.
    pub fn names(&self, host: IpAddr) -> bool {
        self.ip_addresses.as_ref().is_some_and(|list| {
            list.action == Action::Include
                && list
                    .items
                    .iter()
                    .any(|item| item.trim().parse::<IpAddr>() == Ok(host))
        })
    }
}

/// Item of `addresses`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Target {
    network: Address,
    port: u16,
}

impl Target {
    fn new(item: &str) -> Result<Self, &'static str> {
        let item = item.trim();
        let whole = |ip: IpAddr, port| {
            let prefix = if ip.is_ipv4() { 32 } else { 128 };
            let network = Address { ip, prefix };
            Self { network, port }
        };
        let target = if let Ok(ip) = item.parse() {
            whole(ip, PORT)
        } else if let Ok(address) = item.parse::<SocketAddr>() {
            whole(address.ip(), address.port())
        } else {
            let form = "is no address, address with a port, or network; write one such as 10.20.0.5 or 10.20.0.0/24";
            let network = network(item).ok_or(form)?;
            Self {
                network,
                port: PORT,
            }
        };
        let Address { ip, prefix } = target.network;
        if ip.is_multicast() || ip.is_unspecified() || ip.is_loopback() || target.port == 0 {
            return Err("is no address of a camera");
        }
        match ip {
            IpAddr::V4(_) if prefix < MIN_PREFIX => Err("is too large a network; at most /22"),
            IpAddr::V6(ip) if ip.is_unicast_link_local() => {
                Err("is a link-local address, which probes to the group reach")
            }
            IpAddr::V6(_) if prefix < 128 => {
                Err("is an IPv6 network, which has too many addresses; list addresses")
            }
            _ => Ok(target),
        }
    }

    /// Returns the addresses to probe; for a network, without its network and broadcast addresses.
    pub fn addresses(self) -> impl Iterator<Item = SocketAddr> {
        let Address { ip, prefix } = self.network;
        let (first, last, only) = match ip {
            IpAddr::V4(ip) => {
                let hosts = u32::MAX.checked_shr(prefix.into()).unwrap_or_default();
                let first = ip.to_bits() & !hosts;
                let inner = u32::from(prefix < 31);
                (first + inner, (first | hosts) - inner, None)
            }
            IpAddr::V6(_) => (1, 0, Some(ip)),
        };
        let ips = (first..=last).map(|bits| IpAddr::V4(Ipv4Addr::from_bits(bits)));
        let port = self.port;
        ips.chain(only).map(move |ip| SocketAddr::new(ip, port))
    }

    /// Returns true if the address is this one, or in this network.
    pub fn contains(&self, ip: IpAddr) -> bool {
        self.network.contains(ip)
    }

    /// Returns the entry of the grants that permits these ports of the target.
    pub fn grant(&self, ports: &str) -> String {
        let Address { ip, prefix } = self.network;
        match ip {
            IpAddr::V4(_) => format!("{ip}/{prefix}:{ports}"),
            IpAddr::V6(_) => format!("[{ip}]/{prefix}:{ports}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Address { ip, prefix } = self.network;
        if prefix < 32 {
            write!(f, "{ip}/{prefix}")
        } else {
            ip.fmt(f)
        }
    }
}

/// Describes an item of a filter that no camera is likely to have.
fn strange(field: &str, item: &str) -> Option<&'static str> {
    let is_address = || item.trim().parse::<IpAddr>().is_ok() || network(item).is_some();
    match field {
        "ipAddresses" if !is_address() => Some(
            "is neither an address nor a network; write one such as 192.168.7.5 or 192.168.7.0/24",
        ),
        "macAddresses" if !mac::is_spelled(&mac::spell(item)) => {
            Some("is not a hardware address; write one such as 00:11:22:aa:bb:cc")
        }
        "scopes" if item.contains('*') || !item.contains(':') => Some(
            "is compared with a scope as a whole; write one such as onvif://www.onvif.org/location/hall",
        ),
        _ => None,
    }
}

/// Parses a network as an item of `ipAddresses`, such as `192.168.7.0/24`.
pub fn network(item: &str) -> Option<Address> {
    let (ip, prefix) = item.trim().split_once('/')?;
    let ip: IpAddr = ip.parse().ok()?;
    let prefix = prefix.parse().ok()?;
    let longest = if ip.is_ipv4() { 32 } else { 128 };
    (prefix <= longest).then_some(Address { ip, prefix })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Onvif;
    use leafhost_sdk::testing::{remarks, validate};

    #[test]
    fn details_of_akri_are_accepted() {
        for text in [
            "",
            "{}",
            "discoveryTimeoutSeconds: 2",
            "discoveryTimeoutSeconds: 60",
            "ipAddresses:\n  action: Exclude\n  items: []\nmacAddresses:\n  action: Exclude\n  items: []\nscopes:\n  action: Include\n  items: [\"onvif://www.onvif.org/name/GreatONVIFCamera\"]\ndiscoveryTimeoutSeconds: 2\n",
            "uuids: {items: [a]}",
            "leafhost.dev/xaddrs: all",
            "streams: true",
            "channels: devices",
            "channels: one\nstreams: true",
            "addresses: [10.20.0.5, '10.20.0.5:13702', 10.20.0.0/24, '2001:db8::9', '[2001:db8::9]:3702']",
            "leafhost.dev/identity: endpoint-reference",
            "leafhost.dev/xaddrs: all\nleafhost.dev/identity: url",
        ] {
            assert_eq!(validate::<Onvif>(text), [], "{text}");
        }
    }

    #[test]
    fn a_filter_that_no_camera_passes_has_a_remark() {
        for (text, path, words) in [
            (
                "macAddresses: {action: Include, items: []}",
                "macAddresses",
                "write action: Exclude",
            ),
            (
                "ipAddresses: {items: [10.0.0.1, 192.168.1.*]}",
                "ipAddresses.items[1]",
                "neither an address",
            ),
            (
                "macAddresses: {action: Exclude, items: ['00:11:22:33:44:GG']}",
                "macAddresses.items[0]",
                "not a hardware address",
            ),
            (
                "scopes: {items: [Profile/Streaming]}",
                "scopes.items[0]",
                "as a whole",
            ),
            (
                "scopes: {items: ['onvif://www.onvif.org/name/*']}",
                "scopes.items[0]",
                "as a whole",
            ),
        ] {
            let told = remarks::<Onvif>(text);
            let [one] = &told[..] else {
                unreachable!("{text}: {told:?}");
            };
            assert_eq!(one.path, path, "{text}");
            assert!(one.message.contains(words), "{}", one.message);
        }
        for text in [
            "",
            "ipAddresses: {action: Exclude, items: []}",
            "ipAddresses: {items: [10.0.0.1, 10.0.0.0/24, '2001:db8::9']}",
            "macAddresses: {items: [00-11-22-33-44-55, 001122aabbcc]}",
            "scopes: {items: ['onvif://www.onvif.org/name/Cam']}",
            "uuids: {items: [a]}",
        ] {
            assert_eq!(remarks::<Onvif>(text), [], "{text}");
        }
    }

    #[test]
    fn a_network_is_probed_without_its_broadcasts() {
        for (item, count, first, grant) in [
            ("10.0.0.9", 1, "10.0.0.9:3702", "10.0.0.9/32:*"),
            ("10.0.0.9:81", 1, "10.0.0.9:81", "10.0.0.9/32:*"),
            ("10.0.0.9/32", 1, "10.0.0.9:3702", "10.0.0.9/32:*"),
            ("10.0.0.9/31", 2, "10.0.0.8:3702", "10.0.0.9/31:*"),
            ("10.0.0.9/30", 2, "10.0.0.9:3702", "10.0.0.9/30:*"),
            ("10.0.0.9/22", 1022, "10.0.0.1:3702", "10.0.0.9/22:*"),
            (
                "255.255.255.0/24",
                254,
                "255.255.255.1:3702",
                "255.255.255.0/24:*",
            ),
            (
                "2001:db8::9",
                1,
                "[2001:db8::9]:3702",
                "[2001:db8::9]/128:*",
            ),
        ] {
            let target = Target::new(item).unwrap();
            assert_eq!(target.addresses().count(), count, "{item}");
            let address = target.addresses().next().map(|one| one.to_string());
            assert_eq!(address.as_deref(), Some(first));
            assert_eq!(target.grant("*"), grant);
        }
    }

    #[test]
    fn the_invalid_field_is_reported() {
        for (text, path, words) in [
            (
                "ipAddress: {action: Exclude, items: [192.168.7.9]}",
                "ipAddress",
                "unknown field ipAddress; did you mean ipAddresses?",
            ),
            (
                "scopes: {acton: Exclude, items: []}",
                "scopes.acton",
                "unknown field acton; did you mean action?",
            ),
            (
                "ipAddresses: {action: Include}",
                "ipAddresses.items",
                "is missing",
            ),
            (
                "scopes: {action: include, items: []}",
                "scopes.action",
                "is \"include\", must be Include or Exclude",
            ),
            (
                "uuids: {items: [[a]]}",
                "uuids.items[0]",
                "is a list, must be text",
            ),
            (
                "discoveryTimeoutSeconds: -1",
                "discoveryTimeoutSeconds",
                "must not be negative",
            ),
            (
                "ipAddresses: {items: [192.168.7.0/24, 192.168.7.0/33]}",
                "ipAddresses.items[1]",
                "192.168.7.0/24",
            ),
            (
                "discoveryTimeoutSeconds: 1.5",
                "discoveryTimeoutSeconds",
                "is 1.5, must be a whole number",
            ),
            ("addresses: [camera.lan]", "addresses[0]", "10.20.0.0/24"),
            (
                "addresses: [10.0.0.1, 10.0.0.0/21]",
                "addresses[1]",
                "at most /22",
            ),
            (
                "addresses: ['2001:db8::/120']",
                "addresses[0]",
                "list addresses",
            ),
            ("addresses: ['fe80::9']", "addresses[0]", "link-local"),
            (
                "addresses: [239.255.255.250]",
                "addresses[0]",
                "no address of a camera",
            ),
            (
                "addresses: ['10.0.0.1:0']",
                "addresses[0]",
                "no address of a camera",
            ),
            (
                "addresses: [10.0.0.0/22, 10.0.4.0/22]",
                "addresses",
                "are 2044 addresses, at most 1024",
            ),
            (
                "leafhost.dev/xaddrs: some",
                "leafhost.dev/xaddrs",
                "must be first or all",
            ),
            ("channels: some", "channels", "must be one or devices"),
            (
                "leafhost.dev/identity: mac",
                "leafhost.dev/identity",
                "must be url or endpoint-reference",
            ),
            (
                "leafhost.dev/identity: endpoint-reference\nleafhost.dev/xaddrs: all",
                "leafhost.dev/xaddrs",
                "must be `first`",
            ),
        ] {
            let problems = validate::<Onvif>(text);
            let [problem] = &problems[..] else {
                unreachable!("{text}: {problems:?}");
            };
            assert_eq!(problem.path, path, "{text}");
            assert!(problem.message.contains(words), "{}", problem.message);
        }
    }
}
