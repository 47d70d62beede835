//! Device events.

use std::collections::BTreeMap;
use std::time::Duration;

/// An event of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Event {
    /// Action as the kernel names it: `add`, `remove`, `change`, `move`, `bind`, `unbind`, `online`, `offline`. Empty if events were lost, see
    /// [`Event::is_lost`].
    pub action: String,
    /// Path below `/sys`.
    pub devpath: String,
    /// Subsystem, if the event names one.
    pub subsystem: Option<String>,
    /// Node below `/dev`, if the device has one.
    pub devnode: Option<String>,
    /// Properties of the event; from the kernel's group without udev's own.
    pub properties: BTreeMap<String, String>,
    /// Time after which to look again, if the event came from the kernel: udevd's changes (permissions, links, properties) may come later.
    pub settle: Option<Duration>,
}

impl Event {
    /// Creates the event that reports lost events: they came faster than they were read, so everything must be read again.
    pub fn lost(settle: Option<Duration>) -> Self {
        Self {
            settle,
            ..Self::default()
        }
    }

    /// Returns true if the event reports that events were lost. Such an event wakes every rule.
    pub fn is_lost(&self) -> bool {
        self.action.is_empty()
    }
}
