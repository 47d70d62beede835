//! What expressions find of a device: its attributes and capacities, by domain and name.

use std::collections::BTreeMap;

use leafhost_core::attribute::{AttributeValue, nanos};
use leafhost_core::instance::Instance;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::slice_device::described;
use leafhost_core::slices::DRIVER;

/// Is a domain and the name of an attribute or a capacity in it.
pub type Name = (String, String);

/// Is what is said of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Facts {
    /// Holds the attributes.
    pub(crate) attributes: BTreeMap<Name, AttributeValue>,
    /// Holds the capacities, in thousand-millionths.
    pub(crate) capacity: BTreeMap<Name, i128>,
    /// True if several pods may use it at a time.
    pub(crate) is_shared: bool,
}

/// Is a value that an expression may read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Fact {
    /// Of an attribute.
    Attribute(AttributeHash),
    /// Of a capacity.
    Capacity(i128),
}

/// Is an attribute's value with its kind.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum AttributeHash {
    /// A text.
    String(String),
    /// A number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
    /// A version.
    Version(String),
}

impl Facts {
    /// Returns what an Instance says of its device: the same as in a ResourceSlice.
    pub fn of(configuration: &ConfigurationKey, instance: &Instance) -> Self {
        let (attributes, capacity) = described(configuration, instance);
        let attributes = attributes.into_iter();
        let capacity = capacity.into_iter();
        Self {
            attributes: attributes
                .map(|(name, value)| (qualified(&name), value))
                .collect(),
            capacity: capacity
                .filter_map(|(name, value)| Some((qualified(&name), nanos(&value)?)))
                .collect(),
            is_shared: instance.spec.capacity > 1,
        }
    }

    /// Returns the value of an attribute by its whole name, `<domain>/<name>`.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.get(&qualified(name))
    }
}

/// Splits a name; one without a domain is of ours, as in a slice of our driver.
pub fn qualified(name: &str) -> Name {
    let (domain, name) = name.split_once('/').unwrap_or((DRIVER, name));
    (domain.to_owned(), name.to_owned())
}
