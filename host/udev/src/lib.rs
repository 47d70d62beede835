//! Finds and watches devices the way udev rules match them: rules, devices with libudev's information, sysfs attributes and device events.
//!
//! Stands alone: does not know handlers, grants or their contract. [`Subsystems`] limits what may be seen. The functions that read sysfs
//! block for some milliseconds; call them where blocking is allowed.
//!
//! Without a running udevd everything works on the kernel's information: no `ID_*` properties, no tags.

mod attribute;
mod device_info;
mod event;
mod find;
mod glob;
mod listing;
mod monitor;
mod owner;
mod pattern;
mod rule;
mod subsystems;
mod sysfs;
mod tree;
mod verdict;
mod wake;

pub use attribute::read;
pub use event::Event;
pub use find::{Device, Found, Note, find};
pub use monitor::{Group, Monitor};
pub use owner::{Owner, owner};
pub use rule::{Field, InvalidRule, MAX_TERMS, MAX_VALUE, Rule, Term};
pub use subsystems::Subsystems;

/// Reason why sysfs could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no sysfs.
    #[error(
        "cannot see devices: /sys/devices does not exist; mount sysfs, or give the container the node's /sys"
    )]
    NoSysfs,
    /// The folders of sysfs could not be read.
    #[error("cannot list the devices in /sys")]
    List(#[source] std::io::Error),
    /// The comparison of the rules takes longer than this number of seconds.
    #[error(
        "cannot compare the rules with all devices within {0} s; use fewer rules or simpler patterns"
    )]
    TooSlow(u64),
}

/// Result of reading sysfs.
pub type Result<T, E = Error> = std::result::Result<T, E>;
