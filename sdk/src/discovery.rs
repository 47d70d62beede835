//! The answer to a call, built step by step.

use std::net::IpAddr;
use std::time::Duration;

use crate::bindings::leafhost::discovery::types as wit;
use crate::{Device, Devices, Wake, udev};

/// When a session is called again if its handler says nothing.
const DEFAULT_WAKE: Wake = Wake::After(10_000);

/// The answer to a call.
///
/// It says which devices there are and when to call again: after ten seconds, if nothing is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Discovery {
    /// What was found.
    pub devices: Devices,
    /// Ids that are known to have left.
    pub departed: Vec<String>,
    /// When to call again. Empty: after ten seconds, unless `until_changed`.
    pub wake: Vec<Wake>,
    /// With an empty `wake`: call again only when the Configuration changes.
    pub until_changed: bool,
    /// The bytes to get back at the next call.
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

    /// These are all devices there are. One that was here before and is not among them has gone: it is
    /// withdrawn when its grace (none for a local device, five minutes for a shared one) is over.
    pub fn complete(devices: impl IntoIterator<Item = Device>) -> Self {
        Self::new(Devices::Complete(devices.into_iter().collect()))
    }

    /// These are some of the devices; those not among them stay as they were. For answering when
    /// [`Host::has_time`](crate::Host::has_time) says no, with the rest to follow at the next call.
    pub fn partial(devices: impl IntoIterator<Item = Device>) -> Self {
        Self::new(Devices::Partial(devices.into_iter().collect()))
    }

    /// The same devices as last time. Not after [`Event::First`](crate::Event::First): then it means none.
    pub fn unchanged() -> Self {
        Self::new(Devices::Unchanged)
    }

    /// A device that is known to have left, whatever grace it would have.
    #[must_use]
    pub fn departed(mut self, id: impl Into<String>) -> Self {
        self.departed.push(id.into());
        self
    }

    /// Call again after this time, clamped to one second and one day.
    #[must_use]
    pub fn wake_after(mut self, time: Duration) -> Self {
        let milliseconds = u32::try_from(time.as_millis()).unwrap_or(u32::MAX);
        self.wake.push(Wake::After(milliseconds));
        self
    }

    /// Call again when something happens to a device for which all terms hold. Needs the grant `udev`.
    #[must_use]
    pub fn wake_on_udev(mut self, rule: impl Into<udev::Rule>) -> Self {
        self.wake.push(Wake::Udev(rule.into()));
        self
    }

    /// Call again when an address or a link of a granted interface changes. Needs the grant `network`.
    #[must_use]
    pub fn wake_on_network(mut self) -> Self {
        self.wake.push(Wake::Network);
        self
    }

    /// Call again when a datagram that has all of these bytes (1 to 8 texts of 1 to 64 bytes) comes to a multicast
    /// group from another host. Needs the grant `network.multicast`.
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

    /// Call again only when the Configuration changes, or something else that was asked for happens.
    #[must_use]
    pub fn until_changed(mut self) -> Self {
        self.until_changed = true;
        self
    }

    /// Up to 1 MiB to get back as [`Request::cursor`](crate::Request::cursor) at the next call. Without it what was
    /// there is forgotten.
    #[must_use]
    pub fn cursor(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.cursor = Some(bytes.into());
        self
    }

    /// When the next call comes, as the host is told.
    pub fn wakes(&self) -> &[Wake] {
        if self.wake.is_empty() && !self.until_changed {
            &[DEFAULT_WAKE]
        } else {
            &self.wake
        }
    }

    /// The devices of a complete or partial answer.
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
