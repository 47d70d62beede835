//! `discoveryDetails`: Akri's fields and our additions.

use std::net::IpAddr;
use std::time::Duration;

use leafhost_sdk::Problem;
use leafhost_sdk::net::Address;

/// Maximum of `discoveryTimeoutSeconds`: the call also needs time to ask the cameras.
const MAX_TIMEOUT_SECONDS: i64 = 10;

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

    /// Returns a note if a value is reduced to its upper bound.
    pub fn note(&self) -> Option<String> {
        let seconds = self.discovery_timeout_seconds;
        (seconds > MAX_TIMEOUT_SECONDS).then(|| {
            format!("discoveryTimeoutSeconds: {seconds} is taken as {MAX_TIMEOUT_SECONDS}, the most a call has time for")
        })
    }

    /// Returns the time to wait for answers to a probe, beyond the half second that devices may wait themselves.
    pub fn timeout(&self) -> Duration {
        let seconds = self.discovery_timeout_seconds.clamp(0, MAX_TIMEOUT_SECONDS);
        Duration::from_secs(seconds.unsigned_abs())
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
    use crate::Onvif;
    use leafhost_sdk::testing::validate;

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
            "leafhost.dev/identity: endpoint-reference",
            "leafhost.dev/xaddrs: all\nleafhost.dev/identity: url",
        ] {
            assert_eq!(validate::<Onvif>(text), [], "{text}");
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
                "expected a string",
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
                "i64",
            ),
            (
                "leafhost.dev/xaddrs: some",
                "leafhost.dev/xaddrs",
                "must be first or all",
            ),
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
