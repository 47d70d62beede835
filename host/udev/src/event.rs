//! What happened to a device.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::tree::kernel_of;

/// Something happened to a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kernel's word: `add`, `remove`, `change`, `move`, `bind`, `unbind`, `online`, `offline`. Empty if events
    /// were lost, see [`Event::is_lost`].
    pub action: String,
    /// The path below `/sys`.
    pub devpath: String,
    /// The subsystem, where the event names one.
    pub subsystem: Option<String>,
    /// The node below `/dev`, where the device has one.
    pub devnode: Option<String>,
    /// What the event says of the device; from the kernel's group without udev's own properties.
    pub properties: BTreeMap<String, String>,
    /// udev's tags, sorted; from the kernel's group none.
    pub tags: Vec<String>,
    /// Look again after this time: the event came from the kernel, and what udevd does about it (permissions, links,
    /// properties) may come later.
    pub settle: Option<Duration>,
}

impl Event {
    /// Events came faster than they were read, and some are gone: look at everything.
    pub fn lost(settle: Option<Duration>) -> Self {
        Self {
            action: String::new(),
            devpath: String::new(),
            subsystem: None,
            devnode: None,
            properties: BTreeMap::new(),
            tags: Vec::new(),
            settle,
        }
    }

    /// Whether this stands for events that are gone. It wakes every rule.
    pub fn is_lost(&self) -> bool {
        self.action.is_empty()
    }

    /// The kernel's name of the device.
    pub fn kernel(&self) -> String {
        kernel_of(&self.devpath).into_owned()
    }
}
