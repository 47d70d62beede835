//! Devices of the node as udev knows them. [`Host::udev`](crate::Host::udev) needs the grant `udev: {subsystems: […]}`.
//!
//! ```
//! use leafhost_sdk::udev;
//!
//! // SUBSYSTEM=="video4linux", ATTRS{idVendor}!="046d"
//! let rule = vec![udev::subsystem("video4linux"), udev::attrs("idVendor", "046d").not()];
//! # assert!(rule[1].negated);
//! ```

use std::fmt;

use crate::Host;
use crate::bindings::leafhost::udev::devices as wit;

#[doc(inline)]
pub use crate::bindings::leafhost::udev::{
    devices::{Device, Owner},
    types::{Event, Field, Rule, Term},
};

/// Error of a udev query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Error {
    /// Rule that exceeds a bound or has an unexpected key; the text names the rule's error.
    InvalidRule(String),
    /// Failure of sysfs: the node has none, or reading it failed; the text has the reason.
    Unavailable(String),
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InvalidRule(what) => write!(f, "udev rule refused: {what}"),
            Self::Unavailable(what) => write!(f, "udev not available: {what}"),
        }
    }
}

impl std::error::Error for Error {}

impl From<wit::Error> for Error {
    fn from(error: wit::Error) -> Self {
        match error {
            wit::Error::InvalidRule(what) => Self::InvalidRule(what),
            wit::Error::Unavailable(what) => Self::Unavailable(what),
        }
    }
}

/// Queries udev devices; returned by [`Host::udev`](crate::Host::udev).
#[derive(Debug, Clone, Copy)]
pub struct Udev<'a>(pub(crate) &'a Host);

impl Udev<'_> {
    /// Returns the devices for which all terms hold, without their ancestors, sorted by `devpath`.
    pub fn matching(&self, terms: &[Term]) -> Result<Vec<Device>, Error> {
        let mut found = self.find(&[terms.to_vec()])?;
        found.retain(Device::matched);
        Ok(found)
    }

    /// Returns all devices for which at least one of the rules holds, with their ancestors, sorted by `devpath`.
    /// [`Device::matched`] tells them apart.
    ///
    /// A rule is a list of terms that must all hold. Each call walks through sysfs once: pass all rules (at most 64)
    /// together.
    pub fn find(&self, rules: &[Rule]) -> Result<Vec<Device>, Error> {
        Ok(self.0.imports.udev_find(rules)?)
    }

    /// Reads sysfs attributes, given as pairs of `devpath` and attribute name, at most 4,096. Returns one value for each, in
    /// the same order; `None` for an attribute that is absent, not readable, binary, or larger than 4 KiB.
    pub fn read(&self, attributes: &[(String, String)]) -> Result<Vec<Option<String>>, Error> {
        Ok(self.0.imports.udev_read(attributes)?)
    }

    /// Returns the owners of device nodes such as `/dev/ttyUSB0`, at most 4,096, one for each in the same order; `None` for
    /// a node of no device that [`find`](Self::find) returned in the same call.
    pub fn owners(&self, devnodes: &[String]) -> Result<Vec<Option<Owner>>, Error> {
        Ok(self.0.imports.udev_owners(devnodes)?)
    }
}

impl Device {
    /// Returns true if a rule held for the device itself, false if it is only an ancestor of such a device.
    pub fn matched(&self) -> bool {
        !self.rules.is_empty()
    }

    /// Returns a property from udev's database, such as `ID_SERIAL`.
    pub fn property(&self, name: &str) -> Option<&str> {
        self.properties
            .iter()
            .find_map(|(other, value)| (other == name).then_some(value.as_str()))
    }
}

impl Field {
    /// Returns the name of the field in a udev rules file.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Attr => "ATTR",
            Self::Attrs => "ATTRS",
            Self::Devpath => "DEVPATH",
            Self::Driver => "DRIVER",
            Self::Drivers => "DRIVERS",
            Self::Env => "ENV",
            Self::Kernel => "KERNEL",
            Self::Kernels => "KERNELS",
            Self::Subsystem => "SUBSYSTEM",
            Self::Subsystems => "SUBSYSTEMS",
            Self::Tag => "TAG",
            Self::Tags => "TAGS",
        }
    }
}

/// Formats the term in the syntax of a rules file, such as `ENV{ID_SERIAL}=="A*"`.
impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.field.name())?;
        if let Some(key) = &self.key {
            write!(f, "{{{key}}}")?;
        }
        let operator = if self.negated { "!=" } else { "==" };
        write!(f, "{operator}\"{}\"", self.value.replace('"', "\\\""))
    }
}

impl Term {
    fn positive(field: Field, key: Option<&str>, value: &str) -> Self {
        Self {
            field,
            key: key.map(str::to_owned),
            negated: false,
            value: value.to_owned(),
        }
    }

    /// Negates the term: `!=` in place of `==`.
    #[must_use]
    #[allow(
        clippy::should_implement_trait,
        reason = "reads as a step of building a rule"
    )]
    pub fn not(mut self) -> Self {
        self.negated = !self.negated;
        self
    }
}

/// Matches `SUBSYSTEM==value`. Values are globs: `*`, `?`, `[…]`, and `|` between alternatives.
pub fn subsystem(value: &str) -> Term {
    Term::positive(Field::Subsystem, None, value)
}

/// Matches `KERNEL==value`, the kernel's name of the device, such as `video0`.
pub fn kernel(value: &str) -> Term {
    Term::positive(Field::Kernel, None, value)
}

/// Matches `DRIVER==value`, the driver bound to the device.
pub fn driver(value: &str) -> Term {
    Term::positive(Field::Driver, None, value)
}

/// Matches `ENV{name}==value`, a property in udev's database. To udev an absent property is an empty text, which `*`
/// matches; use `?*` to match any device that has the property.
pub fn env(name: &str, value: &str) -> Term {
    Term::positive(Field::Env, Some(name), value)
}

/// Matches `ATTR{name}==value`, a sysfs attribute of the device. No term holds for a device without the attribute, negated
/// or not.
pub fn attr(name: &str, value: &str) -> Term {
    Term::positive(Field::Attr, Some(name), value)
}

/// Matches `ATTRS{name}==value`, a sysfs attribute of the device or an ancestor.
pub fn attrs(name: &str, value: &str) -> Term {
    Term::positive(Field::Attrs, Some(name), value)
}

/// Matches `TAG==value`, a tag in udev's database.
pub fn tag(value: &str) -> Term {
    Term::positive(Field::Tag, None, value)
}
