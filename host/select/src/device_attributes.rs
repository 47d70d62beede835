//! Values of a device that expressions can read: attributes and capacities, by domain and name.

use std::collections::BTreeMap;

use leafhost_core::attribute::{AttributeValue, nanos};
use leafhost_core::instance::Instance;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::slice_device::described;
use leafhost_core::slices::DRIVER;

/// Domain, and name of an attribute or capacity in the domain.
pub type Name = (String, String);

/// Values by name, sorted. A map with few entries would be mostly unused memory.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Entries<V>(Box<[(Name, V)]>);

impl<V> Default for Entries<V> {
    fn default() -> Self {
        Self(Box::default())
    }
}

impl<V> Entries<V> {
    /// Returns the value of a name.
    pub fn get(&self, name: &Name) -> Option<&V> {
        let found = self.0.binary_search_by(|(other, _)| other.cmp(name)).ok()?;
        self.0.get(found).map(|(_, value)| value)
    }

    /// Returns the entries of those `names` that have a value.
    pub fn only<'a>(&self, names: impl Iterator<Item = &'a Name>) -> Self
    where
        V: Clone,
    {
        let known = names.filter_map(|name| Some((name.clone(), self.get(name)?.clone())));
        known.collect()
    }

    /// Returns the names and values, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &V)> {
        self.0.iter().map(|(name, value)| (name, value))
    }
}

impl<V> FromIterator<(Name, V)> for Entries<V> {
    fn from_iter<T: IntoIterator<Item = (Name, V)>>(all: T) -> Self {
        let sorted: BTreeMap<Name, V> = all.into_iter().collect();
        Self(sorted.into_iter().collect())
    }
}

/// Attributes and capacities of a device.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct DeviceAttributes {
    /// Attributes of the device.
    pub(crate) attributes: Entries<AttributeValue>,
    /// Capacities of the device, in units of 1e-9.
    pub(crate) capacity: Entries<i128>,
    /// True if several pods may use the device at a time.
    pub(crate) is_shared: bool,
}

impl DeviceAttributes {
    /// Returns the attributes of an Instance's device, which are those that its `ResourceSlice` would publish.
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

    /// Returns the value of an attribute by its qualified name, `<domain>/<name>`.
    pub fn attribute(&self, name: &str) -> Option<&AttributeValue> {
        self.attributes.get(&qualified(name))
    }
}

/// Splits a qualified name. A name without a domain belongs to the domain [`DRIVER`], as in the driver's slices.
pub fn qualified(name: &str) -> Name {
    let (domain, name) = name.split_once('/').unwrap_or((DRIVER, name));
    (domain.to_owned(), name.to_owned())
}
