//! Which objects an agent takes where there are more than it can serve: so many of a namespace, and so many in all. Pure.
//!
//! Objects that were taken before go first, then the oldest. So nobody's new object takes the place of another's that serves, and no namespace
//! has more than its share. What is held is bounded also while a list is read.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use leafhost_core::configuration::MAX_CONFIGURATIONS;

/// The most objects of a namespace.
pub const MAX_OF_NAMESPACE: usize = 500;
/// The most bytes of the objects of a namespace.
const MAX_BYTES_OF_NAMESPACE: usize = 8 << 20;
/// The most bytes of all objects.
const MAX_BYTES: usize = 32 << 20;
/// The most objects of a namespace that are named among those that are left out.
const MAX_NAMED_OF_NAMESPACE: usize = 100;
/// The most that are named in all.
const MAX_NAMED: usize = 2_000;

/// Namespace and name of an object, whatever they are.
pub type Name = (String, String);

/// The place of an object among all: the first are taken.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rank {
    /// Whether it was not taken before, or has grown since.
    is_new: bool,
    /// Those without a time are behind the others.
    is_undated: bool,
    created: Option<Time>,
    uid: String,
}

impl Rank {
    /// Of an object that was not taken before.
    pub fn new(created: Option<Time>, uid: &str) -> Self {
        Self {
            is_new: true,
            is_undated: created.is_none(),
            created,
            uid: uid.to_owned(),
        }
    }
}

/// An object.
#[derive(Debug)]
pub struct Object<T> {
    /// Its place.
    pub rank: Rank,
    /// How many bytes it has.
    pub bytes: usize,
    /// What is said of it if it is left out.
    pub mention: Mention,
    /// What is made of it.
    pub value: T,
}

/// What is said of an object that is left out.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Mention {
    /// The handler that it names.
    pub handler: String,
    /// The version of its spec.
    pub generation: Option<i64>,
}

/// A cap.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Cap {
    NumberOfNamespace,
    BytesOfNamespace,
    Number,
    Bytes,
}

impl Cap {
    /// The cap in words.
    pub fn told(self) -> String {
        match self {
            Self::NumberOfNamespace => format!("{MAX_OF_NAMESPACE} Configurations of a namespace"),
            Self::BytesOfNamespace => format!(
                "{} MiB of Configurations of a namespace",
                MAX_BYTES_OF_NAMESPACE >> 20
            ),
            Self::Number => format!("{MAX_CONFIGURATIONS} Configurations of all namespaces"),
            Self::Bytes => format!(
                "{} MiB of Configurations of all namespaces",
                MAX_BYTES >> 20
            ),
        }
    }
}

/// An object that is left out.
#[derive(Debug)]
pub struct LeftOut {
    /// What is said of it.
    pub mention: Mention,
    /// The cap that it is beyond.
    pub cap: Cap,
    bytes: usize,
}

/// The objects of a namespace that are taken.
#[derive(Debug, Default)]
struct Share {
    ranks: BTreeSet<(Rank, Name)>,
    bytes: usize,
}

/// The objects of a namespace that are left out.
#[derive(Debug, Default)]
struct Others {
    named: BTreeMap<String, LeftOut>,
    /// Digests of the names of those that are only counted.
    unnamed: HashSet<u64>,
}

/// The objects that are taken, and what is kept of those that are left out.
#[derive(Debug)]
pub struct Taken<T> {
    held: BTreeMap<Name, Object<T>>,
    ranks: BTreeSet<(Rank, Name)>,
    shares: BTreeMap<String, Share>,
    bytes: usize,
    left_out: BTreeMap<String, Others>,
    /// How many of those are named.
    named: usize,
}

impl<T> Default for Taken<T> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            ranks: BTreeSet::new(),
            shares: BTreeMap::new(),
            bytes: 0,
            left_out: BTreeMap::new(),
            named: 0,
        }
    }
}

impl<T> Taken<T> {
    /// The value of an object that is taken.
    pub fn get(&self, name: &Name) -> Option<&T> {
        self.held.get(name).map(|held| &held.value)
    }

    /// All that are taken, by name.
    pub fn by_name(&self) -> impl Iterator<Item = (&Name, &T)> {
        self.held.iter().map(|(name, held)| (name, &held.value))
    }

    /// All that are taken, those first that were taken before, then the oldest.
    pub fn by_rank(&self) -> impl Iterator<Item = &T> {
        let names = self.ranks.iter().map(|(_, name)| name);
        names.filter_map(|name| self.get(name))
    }

    /// Those that are left out and named.
    pub fn left_out(&self) -> impl Iterator<Item = (&str, &str, &LeftOut)> {
        self.left_out.iter().flat_map(|(namespace, others)| {
            let named = others.named.iter();
            named.map(|(name, one)| (namespace.as_str(), name.as_str(), one))
        })
    }

    /// How many are left out.
    pub fn left_out_count(&self) -> usize {
        let others = self.left_out.values();
        others.map(|one| one.named.len() + one.unnamed.len()).sum()
    }

    /// Whether one of those that are left out could be taken now.
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

    /// Takes an object, in the place of an earlier version of it; if that is too much, leaves out the last ones.
    pub fn put(&mut self, name: Name, mut object: Object<T>) {
        object.rank.is_new = !self.keeps_place(&name, &object);
        self.put_ranked(name, object);
    }

    /// As [`Self::put`], of a list that is being read: `before` is what was taken until now.
    pub fn put_listed(&mut self, before: &Self, name: Name, mut object: Object<T>) {
        object.rank.is_new = !before.keeps_place(&name, &object);
        self.put_ranked(name, object);
    }

    /// Whether the object may have the place of its earlier version: one that has grown needs room as a new one does.
    fn keeps_place(&self, name: &Name, now: &Object<T>) -> bool {
        let earlier = self.held.get(name);
        earlier
            .is_some_and(|earlier| earlier.rank.uid == now.rank.uid && now.bytes <= earlier.bytes)
    }

    fn put_ranked(&mut self, name: Name, object: Object<T>) {
        self.remove(&name);
        let namespace = name.0.clone();
        self.hold(name, object);
        while let Some((cap, last)) = self.beyond(&namespace)
            && let Some(held) = self.release(&last)
        {
            let one = LeftOut {
                mention: held.mention,
                cap,
                bytes: held.bytes,
            };
            self.leave_out(last, one);
        }
    }

    fn share(&self, namespace: &str) -> (usize, usize) {
        let share = self.shares.get(namespace);
        share.map_or((0, 0), |share| (share.ranks.len(), share.bytes))
    }

    /// The cap that is broken, and who has to go.
    fn beyond(&self, namespace: &str) -> Option<(Cap, Name)> {
        let (number, bytes) = self.share(namespace);
        let of_namespace = self.shares.get(namespace).map(|share| &share.ranks);
        let (cap, ranks) = if number > MAX_OF_NAMESPACE {
            (Cap::NumberOfNamespace, of_namespace?)
        } else if bytes > MAX_BYTES_OF_NAMESPACE {
            (Cap::BytesOfNamespace, of_namespace?)
        } else if self.held.len() > MAX_CONFIGURATIONS {
            (Cap::Number, &self.ranks)
        } else if self.bytes > MAX_BYTES {
            (Cap::Bytes, &self.ranks)
        } else {
            return None;
        };
        let (_, last) = ranks.last()?;
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

    fn hold(&mut self, name: Name, object: Object<T>) {
        let place = (object.rank.clone(), name.clone());
        let share = self.shares.entry(name.0.clone()).or_default();
        share.ranks.insert(place.clone());
        share.bytes = share.bytes.saturating_add(object.bytes);
        self.bytes = self.bytes.saturating_add(object.bytes);
        self.ranks.insert(place);
        self.held.insert(name, object);
    }

    fn release(&mut self, name: &Name) -> Option<Object<T>> {
        let held = self.held.remove(name)?;
        let place = (held.rank.clone(), name.clone());
        self.ranks.remove(&place);
        self.bytes = self.bytes.saturating_sub(held.bytes);
        if let Some(share) = self.shares.get_mut(&name.0) {
            share.ranks.remove(&place);
            share.bytes = share.bytes.saturating_sub(held.bytes);
            if share.ranks.is_empty() {
                self.shares.remove(&name.0);
            }
        }
        Some(held)
    }

    /// Forgets an object.
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

    /// Gives what is taken now its place before all that comes later.
    pub fn settle(&mut self) {
        // New ones are the last.
        let last = self.ranks.iter().rev();
        let new = last.map_while(|(rank, name)| rank.is_new.then(|| name.clone()));
        for name in new.collect::<Vec<_>>() {
            if let Some(mut held) = self.release(&name) {
                held.rank.is_new = false;
                self.hold(name, held);
            }
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

    /// An object of so many bytes, which was created in that second.
    fn mk_object(second: i64, uid: &str, bytes: usize) -> Object<()> {
        let created = Time(jiff::Timestamp::from_second(second).unwrap());
        Object {
            rank: Rank::new(Some(created), uid),
            bytes,
            mention: Mention::default(),
            value: (),
        }
    }

    fn mk_name(namespace: &str, number: usize) -> Name {
        (namespace.to_owned(), format!("c{number:05}"))
    }

    /// Reads a list of namespaces with so many objects, created one after the other; those of one namespace come together.
    fn list(before: &Taken<()>, namespaces: &[(&str, usize)]) -> Taken<()> {
        let (mut listed, mut second) = (Taken::default(), 0);
        for (namespace, number) in namespaces {
            for number in 0..*number {
                second += 1;
                let name = mk_name(namespace, number);
                listed.put_listed(before, name.clone(), mk_object(second, &name.1, 1));
            }
        }
        listed.settle();
        listed
    }

    fn count(taken: &Taken<()>, namespace: &str) -> usize {
        let names = taken.by_name();
        names.filter(|((of, _), ())| of == namespace).count()
    }

    #[test]
    fn a_namespace_has_its_share_and_leaves_the_rest_to_others() {
        let taken = list(&Taken::default(), &[("aaa", 2_010), ("zzz", 3)]);
        assert_eq!(
            (count(&taken, "aaa"), count(&taken, "zzz")),
            (MAX_OF_NAMESPACE, 3)
        );
        assert_eq!(taken.left_out_count(), 2_010 - MAX_OF_NAMESPACE);
        let named: Vec<_> = taken.left_out().collect();
        assert_eq!(named.len(), MAX_NAMED_OF_NAMESPACE);
        assert!(named.iter().all(|(namespace, _, one)| *namespace == "aaa"
            && one.cap == Cap::NumberOfNamespace));
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
        let before = list(&Taken::default(), &namespaces);
        // In this list those of `aaa` are the oldest.
        namespaces.insert(0, ("aaa", MAX_OF_NAMESPACE));
        let after = list(&before, &namespaces);
        assert_eq!(count(&after, "aaa"), 0);
        assert_eq!(count(&after, "zzz"), MAX_OF_NAMESPACE);
        // An agent that has taken nothing yet takes the oldest.
        let first = list(&Taken::default(), &namespaces);
        assert_eq!(
            (count(&first, "aaa"), count(&first, "zzz")),
            (MAX_OF_NAMESPACE, 0)
        );
        // Another object of the same name was not there before.
        let mut taken = list(&Taken::default(), &[("aaa", MAX_OF_NAMESPACE)]);
        taken.put(mk_name("aaa", 9_999), mk_object(0, "older", 1));
        assert_eq!(taken.get(&mk_name("aaa", 9_999)), None);
    }

    #[test]
    fn one_that_grows_beyond_the_bytes_is_left_out_itself() {
        let mut taken = Taken::default();
        let half = MAX_BYTES_OF_NAMESPACE / 2;
        for (number, second) in [(0, 1), (1, 2)] {
            taken.put(
                mk_name("a", number),
                mk_object(second, &number.to_string(), half),
            );
        }
        taken.settle();
        taken.put(mk_name("a", 0), mk_object(1, "0", half + 1));
        let left_out: Vec<_> = taken
            .left_out()
            .map(|(_, name, one)| (name, one.cap))
            .collect();
        assert_eq!(left_out, [("c00000", Cap::BytesOfNamespace)]);
        assert!(!taken.has_room());
        taken.put(mk_name("a", 0), mk_object(1, "0", half));
        assert_eq!(taken.left_out_count(), 0);
    }

    #[test]
    fn one_that_goes_makes_room_in_its_namespace_only() {
        let mut taken = list(
            &Taken::default(),
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
