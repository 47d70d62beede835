//! Chooses the objects that an agent takes if there are more than it can serve, with caps per namespace and in total. Pure.
//!
//! Objects that were taken before come first, then the oldest. So a new object never displaces one of another user that is in use, and no
//! namespace exceeds its share. The use of memory is bounded while a list is read, too.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leafhost_core::configuration::MAX_CONFIGURATIONS;
use leafhost_core::ports::LeftOutConfiguration;

/// Maximum number of objects per namespace.
pub const MAX_OF_NAMESPACE: usize = 500;
/// Maximum size of a namespace's objects, in bytes.
const MAX_BYTES_OF_NAMESPACE: usize = 8 << 20;
/// Maximum size of all objects, in bytes.
const MAX_BYTES: usize = 32 << 20;
/// Maximum number of named left-out objects per namespace.
const MAX_NAMED_OF_NAMESPACE: usize = 100;
/// Maximum number of named left-out objects in total.
const MAX_NAMED: usize = 2_000;

/// Namespace and name of an object, not validated.
pub type Name = (String, String);

/// Rank of an object among all; the first ones are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// True if the object was not taken before, or has grown since.
    is_new: bool,
    /// Sorts objects without a creation time last.
    is_undated: bool,
    created: Option<Time>,
    uid: String,
}

impl Rank {
    /// Creates the rank of an object that was not taken before.
    pub fn new(created: Option<Time>, uid: &str) -> Self {
        Self {
            is_new: true,
            is_undated: created.is_none(),
            created,
            uid: uid.to_owned(),
        }
    }
}

/// An object to take or leave out.
#[derive(Debug)]
pub struct Object<T> {
    /// Rank of the object.
    pub rank: Rank,
    /// Size in bytes.
    pub bytes: usize,
    /// Handler that the object names.
    pub handler: String,
    /// Generation of the object's spec.
    pub generation: Option<i64>,
    /// Value computed from the object.
    pub value: T,
}

/// An object that is left out.
#[derive(Debug)]
pub struct LeftOut {
    /// Description of the object, with the cap that it exceeds.
    pub what: LeftOutConfiguration,
    bytes: usize,
}

/// Left-out objects of a namespace.
#[derive(Debug, Default)]
struct LeftOutGroup {
    named: BTreeMap<String, LeftOut>,
    /// Digests of the names of objects that are only counted.
    unnamed: HashSet<u64>,
}

/// Taken objects, and a record of the left-out ones.
#[derive(Debug, Default)]
pub struct CappedSet<T> {
    held: BTreeMap<Name, Object<T>>,
    /// Size of all taken objects.
    bytes: usize,
    left_out: BTreeMap<String, LeftOutGroup>,
    /// Number of left-out objects, in all namespaces, that are recorded by name.
    named: usize,
}

impl<T> CappedSet<T> {
    /// Returns the value of a taken object.
    pub fn get(&self, name: &Name) -> Option<&T> {
        self.held.get(name).map(|held| &held.value)
    }

    /// Returns all taken objects by name.
    pub fn by_name(&self) -> impl Iterator<Item = (&Name, &T)> {
        self.held.iter().map(|(name, held)| (name, &held.value))
    }

    /// Returns all taken objects by rank: those that were taken before first, then the oldest.
    pub fn by_rank(&self) -> impl Iterator<Item = &T> {
        let mut held: Vec<_> = self.held.iter().collect();
        held.sort_by_key(|(name, held)| (&held.rank, *name));
        held.into_iter().map(|(_, held)| &held.value)
    }

    /// Returns the left-out objects that are recorded by name, each with its namespace and name.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, &str, &LeftOut)> {
        self.left_out.iter().flat_map(|(namespace, others)| {
            let named = others.named.iter();
            named.map(|(name, one)| (namespace.as_str(), name.as_str(), one))
        })
    }

    /// Returns the number of left-out objects.
    pub fn left_out_count(&self) -> usize {
        let others = self.left_out.values();
        others.map(|one| one.named.len() + one.unnamed.len()).sum()
    }

    /// Returns true if a left-out object could be taken now.
    pub fn has_room(&self) -> bool {
        self.left_out.iter().any(|(namespace, others)| {
            let (number, bytes) = self.share(namespace);
            let fits = |more: usize| {
                number < MAX_OF_NAMESPACE
                    && bytes.saturating_add(more) <= MAX_BYTES_OF_NAMESPACE
                    && self.held.len() < MAX_CONFIGURATIONS
                    && self.bytes.saturating_add(more) <= MAX_BYTES
            };
            let mut named = others.named.values();
            named.any(|one| fits(one.bytes)) || (others.named.is_empty() && fits(0))
        })
    }

    /// Takes an object in place of its earlier version; leaves out the last ones while a cap is exceeded. For an object of a list that is
    /// being read, `before` holds the objects taken until now.
    pub fn put(&mut self, before: Option<&Self>, name: Name, mut object: Object<T>) {
        let earlier = before.unwrap_or(self).held.get(&name);
        // An object that has grown needs room like a new one.
        let keeps_place = earlier.is_some_and(|earlier| {
            earlier.rank.uid == object.rank.uid && object.bytes <= earlier.bytes
        });
        object.rank.is_new = !keeps_place;
        self.remove(&name);
        let namespace = name.0.clone();
        self.bytes = self.bytes.saturating_add(object.bytes);
        self.held.insert(name, object);
        while let Some((cap, last)) = self.beyond(&namespace)
            && let Some(held) = self.release(&last)
        {
            let one = LeftOut {
                what: LeftOutConfiguration {
                    handler: held.handler,
                    generation: held.generation,
                    cap,
                },
                bytes: held.bytes,
            };
            self.leave_out(last, one);
        }
    }

    /// Returns the number and the size of a namespace's taken objects.
    fn share(&self, namespace: &str) -> (usize, usize) {
        let first = (namespace.to_owned(), String::new());
        let from_first = self.held.range(first..);
        let of_namespace = from_first.take_while(|((of, _), _)| of == namespace);
        of_namespace.fold((0, 0), |(number, bytes), (_, held)| {
            (number + 1, bytes.saturating_add(held.bytes))
        })
    }

    /// Returns the exceeded cap in words, and the object to leave out.
    fn beyond(&self, namespace: &str) -> Option<(String, Name)> {
        let (number, bytes) = self.share(namespace);
        let mib = |bytes: usize| format!("{} MiB of", bytes >> 20);
        let (cap, is_of_all) = if number > MAX_OF_NAMESPACE {
            (MAX_OF_NAMESPACE.to_string(), false)
        } else if bytes > MAX_BYTES_OF_NAMESPACE {
            (mib(MAX_BYTES_OF_NAMESPACE), false)
        } else if self.held.len() > MAX_CONFIGURATIONS {
            (MAX_CONFIGURATIONS.to_string(), true)
        } else if self.bytes > MAX_BYTES {
            (mib(MAX_BYTES), true)
        } else {
            return None;
        };
        let of = if is_of_all {
            "all namespaces"
        } else {
            "a namespace"
        };
        let cap = format!("{cap} Configurations of {of}");
        let held = self.held.iter();
        let candidates = held.filter(|((of, _), _)| is_of_all || of == namespace);
        let (last, _) = candidates.max_by_key(|(name, held)| (&held.rank, *name))?;
        Some((cap, last.clone()))
    }

    fn leave_out(&mut self, (namespace, name): Name, one: LeftOut) {
        let others = self.left_out.entry(namespace).or_default();
        if self.named < MAX_NAMED && others.named.len() < MAX_NAMED_OF_NAMESPACE {
            self.named += 1;
            others.named.insert(name, one);
        } else {
            others.unnamed.insert(digest(&name));
        }
    }

    fn release(&mut self, name: &Name) -> Option<Object<T>> {
        let held = self.held.remove(name)?;
        self.bytes = self.bytes.saturating_sub(held.bytes);
        Some(held)
    }

    /// Removes an object.
    pub fn remove(&mut self, name: &Name) {
        self.release(name);
        if let Some(others) = self.left_out.get_mut(&name.0) {
            if others.named.remove(&name.1).is_some() {
                self.named = self.named.saturating_sub(1);
            }
            others.unnamed.remove(&digest(&name.1));
            if others.named.is_empty() && others.unnamed.is_empty() {
                self.left_out.remove(&name.0);
            }
        }
    }

    /// Ranks all taken objects before any later one.
    pub fn settle(&mut self) {
        for held in self.held.values_mut() {
            held.rank.is_new = false;
        }
    }
}

fn digest(name: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    name.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an object of this size and creation time in seconds.
    fn mk_object(second: i64, uid: &str, bytes: usize) -> Object<()> {
        let created = Time(jiff::Timestamp::from_second(second).unwrap());
        Object {
            rank: Rank::new(Some(created), uid),
            bytes,
            handler: String::new(),
            generation: None,
            value: (),
        }
    }

    fn mk_name(namespace: &str, number: usize) -> Name {
        (namespace.to_owned(), format!("c{number:05}"))
    }

    /// Reads a list of namespaces with their numbers of objects, in order of creation.
    fn list(before: &CappedSet<()>, namespaces: &[(&str, usize)]) -> CappedSet<()> {
        let (mut listed, mut second) = (CappedSet::default(), 0);
        for (namespace, number) in namespaces {
            for number in 0..*number {
                second += 1;
                let name = mk_name(namespace, number);
                listed.put(Some(before), name.clone(), mk_object(second, &name.1, 1));
            }
        }
        listed.settle();
        listed
    }

    fn count(taken: &CappedSet<()>, namespace: &str) -> usize {
        let names = taken.by_name();
        names.filter(|((of, _), ())| of == namespace).count()
    }

    #[test]
    fn a_namespace_has_its_share_and_leaves_the_rest_to_others() {
        let taken = list(&CappedSet::default(), &[("aaa", 2_010), ("zzz", 3)]);
        assert_eq!(
            (count(&taken, "aaa"), count(&taken, "zzz")),
            (MAX_OF_NAMESPACE, 3)
        );
        assert_eq!(taken.left_out_count(), 2_010 - MAX_OF_NAMESPACE);
        let named: Vec<_> = taken.left_out().collect();
        assert_eq!(named.len(), MAX_NAMED_OF_NAMESPACE);
        assert!(named.iter().all(|(namespace, _, one)| *namespace == "aaa"
            && one.what.cap == "500 Configurations of a namespace"));
    }

    #[test]
    fn what_was_taken_before_stays_whoever_is_older_or_sorts_first() {
        let full = [
            ("m", MAX_OF_NAMESPACE),
            ("n", MAX_OF_NAMESPACE),
            ("o", MAX_OF_NAMESPACE),
        ];
        let mut namespaces = full.to_vec();
        namespaces.push(("zzz", MAX_OF_NAMESPACE));
        let before = list(&CappedSet::default(), &namespaces);
        // In this list the objects of `aaa` are the oldest.
        namespaces.insert(0, ("aaa", MAX_OF_NAMESPACE));
        let after = list(&before, &namespaces);
        assert_eq!(count(&after, "aaa"), 0);
        assert_eq!(count(&after, "zzz"), MAX_OF_NAMESPACE);
        // An agent that has taken nothing yet takes the oldest.
        let first = list(&CappedSet::default(), &namespaces);
        assert_eq!(
            (count(&first, "aaa"), count(&first, "zzz")),
            (MAX_OF_NAMESPACE, 0)
        );
        // Another object of the same name counts as new.
        let mut taken = list(&CappedSet::default(), &[("aaa", MAX_OF_NAMESPACE)]);
        taken.put(None, mk_name("aaa", 9_999), mk_object(0, "older", 1));
        assert_eq!(taken.get(&mk_name("aaa", 9_999)), None);
    }

    #[test]
    fn one_that_grows_beyond_the_bytes_is_left_out_itself() {
        let mut taken = CappedSet::default();
        let half = MAX_BYTES_OF_NAMESPACE / 2;
        for (number, second) in [(0, 1), (1, 2)] {
            taken.put(
                None,
                mk_name("a", number),
                mk_object(second, &number.to_string(), half),
            );
        }
        taken.settle();
        taken.put(None, mk_name("a", 0), mk_object(1, "0", half + 1));
        let left_out: Vec<_> = taken
            .left_out()
            .map(|(_, name, one)| (name, &*one.what.cap))
            .collect();
        let cap = "8 MiB of Configurations of a namespace";
        assert_eq!(left_out, [("c00000", cap)]);
        assert!(!taken.has_room());
        taken.put(None, mk_name("a", 0), mk_object(1, "0", half));
        assert_eq!(taken.left_out_count(), 0);
    }

    #[test]
    fn one_that_goes_makes_room_in_its_namespace_only() {
        let mut taken = list(
            &CappedSet::default(),
            &[("aaa", MAX_OF_NAMESPACE + 200), ("zzz", 3)],
        );
        taken.remove(&mk_name("zzz", 0));
        assert!(!taken.has_room());
        taken.remove(&mk_name("aaa", MAX_OF_NAMESPACE + 199));
        assert_eq!(taken.left_out_count(), 199);
        taken.remove(&mk_name("aaa", 0));
        assert!(taken.has_room());
    }
}
