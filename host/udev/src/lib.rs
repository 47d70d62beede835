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
pub use find::{Device, Found, MAX_NOTES, Note, find};
pub use monitor::{Group, Monitor, MonitorError};
pub use owner::{Owner, owner};
pub use rule::{Field, InvalidRule, MAX_TERMS, MAX_VALUE, Rule, Term};
pub use subsystems::Subsystems;

use std::path::PathBuf;

/// Reason why sysfs could not be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no sysfs.
    #[error("cannot see devices: {path} does not exist; mount sysfs, or give the container the node's /sys", path = .path.display())]
    NoSysfs {
        /// Path that was looked for.
        path: PathBuf,
    },
    /// The folders of sysfs could not be read.
    #[error("cannot list the devices in /sys")]
    List {
        /// Operating system error.
        #[source]
        source: std::io::Error,
    },
    /// The comparison of the rules takes too long.
    #[error(
        "cannot compare the rules with all devices within {seconds} s; use fewer rules or simpler patterns"
    )]
    TooSlow {
        /// Time limit, in seconds.
        seconds: u64,
    },
}

/// Result of reading sysfs.
pub type Result<T, E = Error> = std::result::Result<T, E>;
