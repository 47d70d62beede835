//! Builder of the answer to a call.

use std::net::IpAddr;
use std::time::Duration;

use crate::bindings::leafhost::discovery::types as wit;
use crate::{Device, Devices, Wake, udev};

/// Delay before the next call if the handler asks for none.
const DEFAULT_WAKE: Wake = Wake::After(10_000);

/// Answer to a call.
///
/// Holds the devices and the wakes that trigger the next call; without a wake it comes after ten seconds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// Devices that were found.
    pub devices: Devices,
    /// Ids of devices that are known to have left.
    pub departed: Vec<String>,
    /// Wakes that trigger the next call. If empty, it comes after ten seconds, unless `until_changed` is set.
    pub wake: Vec<Wake>,
    /// True if, with an empty `wake`, the next call comes only when the Configuration changes.
    pub until_changed: bool,
    /// Bytes that the next call receives.
    pub cursor: Option<Vec<u8>>,
}

impl Discovery {
    fn new(devices: Devices) -> Self {
        Self {
            devices,
            departed: Vec::new(),
            wake: Vec::new(),
            until_changed: false,
            cursor: None,
        }
    }

    /// Creates an answer that lists all devices. A device of an earlier answer that is not among them is gone: it is
    /// withdrawn once its grace period (none for a local device, five minutes for a shared one) has expired.
    pub fn complete(devices: impl IntoIterator<Item = Device>) -> Self {
        Self::new(Devices::Complete(devices.into_iter().collect()))
    }

    /// Creates an answer that lists some of the devices; all others stay as they were. Use it when
    /// [`Host::has_time`](crate::Host::has_time) returns false, and report the rest at the next call.
    pub fn partial(devices: impl IntoIterator<Item = Device>) -> Self {
        Self::new(Devices::Partial(devices.into_iter().collect()))
    }

    /// Creates an answer with the same devices as last time. After [`Event::First`](crate::Event::First) it means no
    /// devices.
    pub fn unchanged() -> Self {
        Self::new(Devices::Unchanged)
    }

    /// Reports a device that is known to have left; it is withdrawn without a grace period.
    #[must_use]
    pub fn departed(mut self, id: impl Into<String>) -> Self {
        self.departed.push(id.into());
        self
    }

    /// Requests a call after this time, clamped to between one second and one day.
    #[must_use]
    pub fn wake_after(mut self, time: Duration) -> Self {
        let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.wake.push(Wake::After(milliseconds));
        self
    }

    /// Requests a call on a udev event of a device for which all terms of `rule` hold. Needs the grant `udev`.
    #[must_use]
    pub fn wake_on_udev(mut self, rule: impl Into<udev::Rule>) -> Self {
        self.wake.push(Wake::Udev(rule.into()));
        self
    }

    /// Requests a call when an address or a link of a granted interface changes. Needs the grant `network`.
    #[must_use]
    pub fn wake_on_network(mut self) -> Self {
        self.wake.push(Wake::Network);
        self
    }

    /// Requests a call when a datagram that contains all of these byte strings (1 to 8, of 1 to 64 bytes each) arrives at a
    /// multicast group from another host. Needs the grant `network.multicast`.
    #[must_use]
    pub fn wake_on_multicast(
        mut self,
        group: IpAddr,
        port: u16,
        contains: impl IntoIterator<Item = impl Into<Vec<u8>>>,
    ) -> Self {
        self.wake.push(Wake::Multicast(wit::MulticastFilter {
            group: group.to_string(),
            port,
            contains: contains.into_iter().map(Into::into).collect(),
        }));
        self
    }

    /// Disables the default wake: the next call comes only when the Configuration changes or a requested wake occurs.
    #[must_use]
    pub fn until_changed(mut self) -> Self {
        self.until_changed = true;
        self
    }

    /// Stores up to 1 MiB that the next call receives as [`Request::cursor`](crate::Request::cursor). An answer without a
    /// cursor discards the previous one.
    #[must_use]
    pub fn cursor(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.cursor = Some(bytes.into());
        self
    }

    /// Returns the wakes for the host. Without any, returns the default wake, unless `until_changed` is set.
    pub fn wakes(&self) -> &[Wake] {
        if self.wake.is_empty() && !self.until_changed {
            &[DEFAULT_WAKE]
        } else {
            &self.wake
        }
    }

    /// Returns the devices of a complete or partial answer; empty if unchanged.
    pub fn devices(&self) -> &[Device] {
        match &self.devices {
            Devices::Unchanged => &[],
            Devices::Complete(devices) | Devices::Partial(devices) => devices,
        }
    }
}

impl From<Discovery> for wit::Discovery {
    fn from(discovery: Discovery) -> Self {
        Self {
            wake: discovery.wakes().to_vec(),
            devices: discovery.devices,
            departed: discovery.departed,
            cursor: discovery.cursor,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_wake_is_after_ten_seconds() {
        let table = [
            (Discovery::unchanged(), vec![Wake::After(10_000)]),
            (Discovery::unchanged().until_changed(), vec![]),
            (
                Discovery::unchanged().wake_after(Duration::from_mins(1)),
                vec![Wake::After(60_000)],
            ),
            (
                Discovery::unchanged().wake_after(Duration::MAX),
                vec![Wake::After(u32::MAX)],
            ),
            (
                Discovery::unchanged().wake_on_udev([udev::subsystem("usb")]),
                vec![Wake::Udev(vec![udev::subsystem("usb")])],
            ),
        ];
        let group = IpAddr::from([239, 255, 255, 250]);
        let filter = wit::MulticastFilter {
            group: "239.255.255.250".to_owned(),
            port: 3702,
            contains: vec![b"Hello".to_vec()],
        };
        let network = (
            Discovery::unchanged()
                .wake_on_network()
                .wake_on_multicast(group, 3702, ["Hello"]),
            vec![Wake::Network, Wake::Multicast(filter)],
        );
        for (discovery, wake) in table.into_iter().chain([network]) {
            assert_eq!(wit::Discovery::from(discovery).wake, wake);
        }
    }
}
