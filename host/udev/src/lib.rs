//! Finds and watches devices the way udev rules match them: rules, devices with what libudev
//! knows of them, sysfs attributes and device events.
//!
//! Stands alone: knows nothing of handlers, grants or the contract they speak. What may be seen comes in as
//! [`Subsystems`]. The functions that look at sysfs block for some milliseconds; call them where blocking is allowed.
//!
//! Without a running udevd all of it works on what the kernel says: no `ID_*` properties, no tags.

mod attribute;
mod event;
mod facts;
mod find;
mod glob;
mod listing;
mod monitor;
mod pattern;
mod rule;
mod subsystems;
mod sysfs;
mod tree;
mod verdict;
mod wake;

pub use attribute::read;
pub use event::Event;
pub use find::{Device, Found, MAX_NOTES, MAX_RULES, Note, find};
pub use monitor::{Group, Monitor, MonitorError};
pub use rule::{Field, InvalidRule, MAX_TERMS, MAX_VALUE, Rule, Term};
pub use subsystems::Subsystems;

use std::path::PathBuf;

/// Why sysfs could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// More rules than one look answers.
    #[error("cannot look for {count} rules at once, {MAX_RULES} are the most")]
    TooManyRules {
        /// How many there were.
        count: usize,
    },
    /// There is no sysfs.
    #[error("cannot see devices: {path} is not there; mount sysfs, or give the container the node's /sys", path = .path.display())]
    NoSysfs {
        /// What was looked for.
        path: PathBuf,
    },
    /// Reading the folders of sysfs failed.
    #[error("cannot list the devices in /sys")]
    List {
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// The rules take too long to compare.
    #[error(
        "cannot compare the rules with all devices within {seconds} s; use fewer rules or simpler patterns"
    )]
    TooSlow {
        /// The bound.
        seconds: u64,
    },
}

/// Result of looking at sysfs.
pub type Result<T, E = Error> = std::result::Result<T, E>;
