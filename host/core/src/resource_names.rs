//! Tells which namespace has a resource's name, which is what stands behind `akri.sh/`.
//!
//! Configurations of two namespaces may have one name, and a Configuration may be named like an Instance of another one. In a cluster the
//! controller keeps a *reservation* for each name of a Configuration: it outlives the Configuration for a while, so that who deletes it and
//! applies it again keeps the name. A reservation of `echo` covers `echo` and all names that Instances of `echo` can have. Of two that
//! cover a name the older has it.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use crate::names::{ConfigurationKey, DigestLength};
use crate::status_store::WriteError;

/// A name of a Configuration that a namespace has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reservation {
    /// The namespace.
    pub namespace: String,
    /// When it was made; nothing is younger than one that does not say it.
    pub created: Option<Timestamp>,
}

/// All reservations, by the name of the Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ResourceNames(BTreeMap<String, Reservation>);

/// Has a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NameOwner<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// The name of its Configuration.
    pub configuration: &'a str,
    /// Whether the name is one that an Instance of the Configuration can have.
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

/// Returns the name of the Configuration that an Instance with this name would belong to: it is followed by `-` and a digest.
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

impl ResourceNames {
    /// Returns the reservation of exactly that name.
    pub fn get(&self, configuration: &str) -> Option<&Reservation> {
        self.0.get(configuration)
    }

    /// Adds a reservation, in place of another one of the name.
    pub fn insert(&mut self, configuration: String, reservation: Reservation) {
        self.0.insert(configuration, reservation);
    }
}

impl FromIterator<(String, Reservation)> for ResourceNames {
    fn from_iter<T: IntoIterator<Item = (String, Reservation)>>(all: T) -> Self {
        Self(all.into_iter().collect())
    }
}

/// Says who has which name: by the reservations, and where none covers it by age, as the controller reserves it a moment later.
#[derive(Debug, Clone)]
pub struct NameOwners<'a> {
    reserved: &'a ResourceNames,
    /// The namespaces of the oldest Configurations whose names are not reserved.
    unreserved: BTreeMap<&'a str, &'a str>,
}

impl<'a> NameOwners<'a> {
    /// Takes Configurations by age, the oldest first.
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

    /// Says whether the Configuration has its name without a reservation.
    pub fn is_unreserved(&self, key: &ConfigurationKey) -> bool {
        self.unreserved.get(key.name()) == Some(&key.namespace())
    }

    /// Returns what has the name, if anything does.
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
            // Once `echo` is reserved, `echo-a19705` never is for another namespace: of the same second that one was first.
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

    /// Returns what has the name, if that is of another namespace.
    pub fn taken_from<'b>(&'b self, namespace: &str, name: &'b str) -> Option<NameOwner<'b>> {
        self.owner(name)
            .filter(|owner| owner.namespace != namespace)
    }
}

/// A reservation as its object has it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NameRecord {
    /// The reservation.
    pub reservation: Reservation,
    /// What identifies the object among all that ever had the name.
    pub uid: String,
    /// The version of the object.
    pub resource_version: String,
    /// Since when no Configuration of the namespace has the name, as the object says.
    pub unused_since: Option<Timestamp>,
}

/// The reservations of a cluster as they are known now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameSet {
    /// Whether they have been read, or it is known that they cannot be. Until then an absent one says nothing.
    pub is_known: bool,
    /// Whether they have been read once.
    pub is_read: bool,
    /// Why they cannot be followed at the moment, with the remedy.
    pub problem: Option<String>,
    /// The objects, by the name of the Configuration.
    pub records: BTreeMap<String, NameRecord>,
    /// What the objects say; without them what an earlier run has kept.
    pub names: Arc<ResourceNames>,
}

impl NameSet {
    /// Returns a set that has been read.
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

/// The reservations of a cluster, which only its controller writes.
#[async_trait]
pub trait NameStore: Send + Sync {
    /// Follows them.
    fn names(&self) -> watch::Receiver<Arc<NameSet>>;
    /// Reserves the name of a Configuration for a namespace, if it is free.
    async fn reserve(&self, name: &str, namespace: &str) -> Result<(), WriteError>;
    /// Notes since when the name is not used; nothing if it is. The object must be as it was seen.
    async fn note_unused(
        &self,
        name: &str,
        seen: &NameRecord,
        since: Option<Timestamp>,
    ) -> Result<(), WriteError>;
    /// Frees the name, if the object still is as it was seen.
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
            // Neither is a name of its Instances.
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
