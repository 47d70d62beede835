//! Ownership of resource names, the part after `akri.sh/`, by namespaces.
//!
//! Configurations of two namespaces may have the same name, and a Configuration may be named like an Instance of
//! another one. In a cluster the controller keeps a *reservation* for each name of a Configuration. It outlives the
//! Configuration for a while, so that a Configuration that is deleted and applied again keeps its name. A reservation
//! of `echo` covers `echo` and all names that Instances of `echo` can have. If two cover a name, the older one owns it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::names::{ConfigurationKey, DigestLength};
use crate::status_store::{ConfigurationState, WriteError};

/// Reservation of a Configuration name for a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// Namespace that owns the name.
    pub namespace: String,
    /// Time of creation; a reservation without one counts as the youngest.
    pub created: Option<Timestamp>,
}

/// All reservations by the name of the Configuration.
pub type ResourceNames = BTreeMap<String, Reservation>;

/// Owner of a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameOwner<'a> {
    /// Namespace of the owner.
    pub namespace: &'a str,
    /// Name of the Configuration.
    pub configuration: &'a str,
    /// True if the name is one that an Instance of the Configuration can have.
    pub is_instance: bool,
}

impl fmt::Display for NameOwner<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let article = if self.is_instance {
            "an Instance of "
        } else {
            ""
        };
        write!(f, "{article}{}/{}", self.namespace, self.configuration)
    }
}

/// Returns the name of the Configuration that an Instance with this name would belong to: the part before `-` and a
/// digest.
pub fn configuration_of(name: &str) -> Option<&str> {
    let (configuration, digest) = name.rsplit_once('-')?;
    let is_digest = DigestLength::ALL
        .iter()
        .any(|length| length.digits() == digest.len())
        && digest
            .bytes()
            .all(|byte| byte.is_ascii_digit() || matches!(byte, b'a'..=b'f'));
    (is_digest && !configuration.is_empty()).then_some(configuration)
}

/// Owners of names: by reservation, or, where none exists yet, by age, as the controller will reserve the names.
#[derive(Debug, Clone)]
pub struct NameOwners<'a> {
    reserved: &'a ResourceNames,
    /// Unreserved names, each with the namespace of its oldest Configuration.
    unreserved: BTreeMap<&'a str, &'a str>,
}

impl<'a> NameOwners<'a> {
    /// Creates the owners from Configurations sorted by age, oldest first.
    pub fn new(
        reserved: &'a ResourceNames,
        configurations: impl IntoIterator<Item = &'a ConfigurationKey>,
    ) -> Self {
        let mut owners = Self {
            reserved,
            unreserved: BTreeMap::new(),
        };
        for key in configurations {
            let (namespace, name) = (key.namespace(), key.name());
            if reserved.get(name).is_none() && owners.taken_from(namespace, name).is_none() {
                owners.unreserved.entry(name).or_insert(namespace);
            }
        }
        owners
    }

    /// Returns true if the Configuration owns its name without a reservation.
    pub fn is_unreserved(&self, key: &ConfigurationKey) -> bool {
        self.unreserved.get(key.name()) == Some(&key.namespace())
    }

    /// Returns the owner of the name, if any.
    pub fn owner<'b>(&'b self, name: &'b str) -> Option<NameOwner<'b>> {
        let of = |configuration: &'b str, is_instance| {
            let reservation = self.reserved.get(configuration);
            let (namespace, created) = match reservation {
                Some(reservation) => (&*reservation.namespace, reservation.created),
                None => (*self.unreserved.get(configuration)?, None),
            };
            let owner = NameOwner {
                namespace,
                configuration,
                is_instance,
            };
            // Once `echo` is reserved, no other namespace can reserve `echo-a19705`. If both are of the same second,
            // `echo-a19705` therefore came first.
            Some(((created.is_none(), created, is_instance), owner))
        };
        let exact = of(name, false);
        let covering = configuration_of(name).and_then(|configuration| of(configuration, true));
        let oldest = exact
            .into_iter()
            .chain(covering)
            .min_by_key(|(age, _)| *age);
        oldest.map(|(_, owner)| owner)
    }

    /// Returns the owner of the name if it is in another namespace.
    pub fn taken_from<'b>(&'b self, namespace: &str, name: &'b str) -> Option<NameOwner<'b>> {
        self.owner(name)
            .filter(|owner| owner.namespace != namespace)
    }
}

/// Sorts Configurations by age, the oldest first.
pub fn oldest_first<'a>(
    states: impl Iterator<Item = (&'a ConfigurationKey, &'a Arc<ConfigurationState>)>,
) -> Vec<&'a ConfigurationKey> {
    let mut all: Vec<_> = states.collect();
    all.sort_by_key(|(key, state)| (state.created.is_none(), state.created, &state.uid, *key));
    all.into_iter().map(|(key, _)| key).collect()
}

/// Reservation with the metadata of its object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRecord {
    /// Reservation in the object.
    pub reservation: Reservation,
    /// Uid of the object: distinguishes it from all others that ever had the name.
    pub uid: String,
    /// Resource version of the object.
    pub resource_version: String,
    /// Time since which no Configuration of the namespace has the name, as recorded in the object.
    pub unused_since: Option<Timestamp>,
}

/// Current reservations of a cluster.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameSet {
    /// True once the reservations have been read or are known to be unreadable. Until then an absent one may exist.
    pub is_known: bool,
    /// True once the reservations have been read.
    pub is_read: bool,
    /// Reason why the reservations currently cannot be watched, with the remedy.
    pub problem: Option<String>,
    /// Objects by the name of the Configuration.
    pub records: BTreeMap<String, NameRecord>,
    /// Reservations of the objects, or those saved by an earlier run until the objects are read.
    pub names: Arc<ResourceNames>,
}

impl NameSet {
    /// Creates a set of reservations that has been read.
    pub fn read(records: BTreeMap<String, NameRecord>) -> Self {
        let names = records.iter();
        let names = names.map(|(name, record)| (name.clone(), record.reservation.clone()));
        Self {
            is_known: true,
            is_read: true,
            problem: None,
            names: Arc::new(names.collect()),
            records,
        }
    }
}

/// Store of the reservations of a cluster, which only its controller writes.
#[async_trait]
pub trait NameStore: Send + Sync {
    /// Reserves a Configuration name for a namespace if it is free.
    async fn reserve(&self, name: &str, namespace: &str) -> Result<(), WriteError>;
    /// Records the time since which the name is unused; `None` if it is used. Fails if the object differs from `seen`.
    async fn note_unused(
        &self,
        name: &str,
        seen: &NameRecord,
        since: Option<Timestamp>,
    ) -> Result<(), WriteError>;
    /// Frees the name if the object has not changed since `seen`.
    async fn free(&self, name: &str, seen: &NameRecord) -> Result<(), WriteError>;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(reservations: &[(&str, &str, i64)]) -> ResourceNames {
        let reservation = |(name, namespace, second): &(&str, &str, i64)| {
            let reservation = Reservation {
                namespace: (*namespace).to_owned(),
                created: Timestamp::from_second(*second).ok(),
            };
            ((*name).to_owned(), reservation)
        };
        reservations.iter().map(reservation).collect()
    }

    #[test]
    fn a_name_belongs_to_the_namespace_of_the_oldest_reservation_that_covers_it() {
        let one = names(&[("echo", "a", 1)]);
        let squatted = names(&[("echo", "a", 2), ("echo-a19705", "b", 1)]);
        let late = names(&[("echo", "a", 1), ("echo-a19705", "b", 2)]);
        let together = names(&[("echo", "a", 1), ("echo-a19705", "b", 1)]);
        for (names, name, owner) in [
            (&one, "echo", Some("a/echo")),
            (&one, "echo-a19705", Some("an Instance of a/echo")),
            (&one, "echo-a1970500aa", Some("an Instance of a/echo")),
            (&one, "echo-0123456789abcdef", Some("an Instance of a/echo")),
            // Not valid names of Instances of `echo`.
            (&one, "echo-a1970", None),
            (&one, "echo-A19705", None),
            (&one, "echo-a1970g", None),
            (&one, "echo-a19705-8120fe", None),
            (&one, "echoa19705", None),
            (&one, "other", None),
            (&one, "", None),
            (&squatted, "echo", Some("a/echo")),
            (&squatted, "echo-a19705", Some("b/echo-a19705")),
            (&squatted, "echo-8120fe", Some("an Instance of a/echo")),
            (
                &squatted,
                "echo-a19705-8120fe",
                Some("an Instance of b/echo-a19705"),
            ),
            (&late, "echo-a19705", Some("an Instance of a/echo")),
            (&together, "echo-a19705", Some("b/echo-a19705")),
        ] {
            let owners = NameOwners::new(names, []);
            let found = owners.owner(name).map(|owner| owner.to_string());
            assert_eq!(found.as_deref(), owner, "{name}");
        }
    }

    #[test]
    fn a_name_is_taken_only_from_other_namespaces() {
        let names = names(&[("echo", "a", 1)]);
        for (namespace, name, is_taken) in [
            ("a", "echo", false),
            ("a", "echo-a19705", false),
            ("b", "echo", true),
            ("b", "echo-a19705", true),
            ("b", "other", false),
        ] {
            let owners = NameOwners::new(&names, []);
            let found = owners.taken_from(namespace, name).is_some();
            assert_eq!(found, is_taken, "{namespace}/{name}");
        }
    }

    #[test]
    fn a_reservation_without_a_time_is_the_youngest() {
        let mut names = names(&[("echo-a19705", "b", 1)]);
        let reservation = Reservation {
            namespace: "a".into(),
            created: None,
        };
        names.insert("echo".into(), reservation);
        let owners = NameOwners::new(&names, []);
        assert_eq!(owners.owner("echo-a19705").unwrap().namespace, "b");
    }

    #[test]
    fn what_is_not_reserved_belongs_to_the_oldest_configuration_and_never_against_a_reservation() {
        let reserved = names(&[("kept", "a", 9)]);
        let none = names(&[]);
        let key = |text: &str| {
            let (namespace, name) = text.split_once('/').unwrap();
            ConfigurationKey::new(namespace, name).unwrap()
        };
        for (reserved, oldest_first, name, owner) in [
            (&none, ["a/echo", "b/echo"], "echo", "a/echo"),
            (&none, ["b/echo", "a/echo"], "echo", "b/echo"),
            (
                &none,
                ["a/echo", "b/echo-a19705"],
                "echo-a19705",
                "an Instance of a/echo",
            ),
            (
                &none,
                ["b/echo-a19705", "a/echo"],
                "echo-a19705",
                "b/echo-a19705",
            ),
            (&reserved, ["b/kept", "a/kept"], "kept", "a/kept"),
            (
                &reserved,
                ["b/kept-a19705", "a/echo"],
                "kept-a19705",
                "an Instance of a/kept",
            ),
        ] {
            let keys = oldest_first.map(key);
            let owners = NameOwners::new(reserved, &keys);
            let found = owners.owner(name).map(|owner| owner.to_string());
            assert_eq!(found.as_deref(), Some(owner), "{oldest_first:?}");
        }
        let keys = ["b/kept", "b/echo", "a/kept", "a/echo"].map(key);
        let owners = NameOwners::new(&reserved, &keys);
        let unreserved: Vec<_> = keys
            .iter()
            .filter(|key| owners.is_unreserved(key))
            .collect();
        assert_eq!(unreserved, [&keys[1]]);
    }
}
