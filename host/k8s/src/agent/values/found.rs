//! Values read from Secrets and `ConfigMap`s, within bounds. Pure.

use std::collections::BTreeMap;

use leafhost_core::properties::{Lookup, Reference};

use super::wanted::{Want, Wanted};
use super::{Keys, Object};

/// Maximum size of values that an agent holds, in bytes.
pub const MAX_BYTES: usize = 32 << 20;
/// Maximum size of values for the Configurations of a namespace, in bytes.
pub const MAX_BYTES_OF_NAMESPACE: usize = 8 << 20;

/// State of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Known {
    /// The object exists and has these keys.
    Keys(Keys),
    /// The object does not exist.
    Missing,
    /// The object cannot be read; the text has the reason and the remedy.
    Unreadable(String),
}

/// Outcome of reading an object; the error is the reason why the API server did not answer.
pub type Outcome = Result<Known, String>;

/// State of each wanted object, with the keys it was read for. Objects not read yet are absent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Found(BTreeMap<Object, (Want, Known)>);

impl Found {
    /// Forgets the objects that are no longer wanted.
    pub fn keep(&mut self, wanted: &Wanted) {
        self.0.retain(|object, (want, _)| {
            let now = wanted.get(object).filter(|now| now.keys == want.keys);
            if let Some(now) = now {
                want.clone_from(now);
            }
            now.is_some()
        });
    }

    /// Returns true once reading the value has succeeded or failed.
    pub fn has(&self, reference: &Reference<'_>) -> bool {
        let read = self.0.get(&Object::of(reference));
        read.is_some_and(|(want, _)| want.keys.contains(reference.key))
    }

    /// Returns the value of a reference.
    pub fn lookup(&self, reference: &Reference<'_>) -> Lookup {
        let object = Object::of(reference);
        match self.0.get(&object).map(|(_, known)| known) {
            Some(Known::Keys(keys)) => match keys.get(reference.key) {
                Some(value) => Lookup::Value(value.clone()),
                None => Lookup::Missing(format!("{object} has no key {:?}; add it", reference.key)),
            },
            Some(Known::Missing) => Lookup::Missing(format!("{object} does not exist; create it")),
            Some(Known::Unreadable(why)) => Lookup::Unavailable(why.clone()),
            None => Lookup::Unavailable(format!("{object} is being read")),
        }
    }

    /// Records the outcome of reading an object. An object that is unreachable at the moment keeps its last state.
    pub fn insert(&mut self, object: Object, want: &Want, outcome: Outcome) {
        let known = match outcome {
            Ok(Known::Keys(keys)) => self.fit(&object, want, keys),
            Ok(known) => known,
            Err(_) if self.is_read(&object) => return,
            Err(why) => Known::Unreadable(why),
        };
        self.0.insert(object, (want.clone(), known));
    }

    /// Returns the values if there is room for them, or the reason why there is none. If all namespaces together exceed the bound, the
    /// objects with the first ranks keep their values.
    fn fit(&mut self, object: &Object, want: &Want, keys: Keys) -> Known {
        let size = size(&keys);
        let of_namespace = self.held(object, |other| other.namespace == want.namespace);
        if of_namespace.saturating_add(size) > MAX_BYTES_OF_NAMESPACE {
            let of = "for the Configurations of a namespace";
            return beyond(object, MAX_BYTES_OF_NAMESPACE, of);
        }
        let first = self.held(object, |other| other.rank < want.rank);
        if first.saturating_add(size) > MAX_BYTES {
            return beyond(object, MAX_BYTES, "in all");
        }
        while self.held(object, |_| true).saturating_add(size) > MAX_BYTES {
            let others = self.0.iter_mut().filter(|(other, _)| *other != object);
            let held = others.filter(|(_, (_, known))| known.size() > 0);
            let Some((last, (_, known))) = held.max_by_key(|(_, (want, _))| want.rank) else {
                break;
            };
            *known = beyond(last, MAX_BYTES, "in all");
        }
        Known::Keys(keys)
    }

    /// Returns the size in bytes of the values held for all objects but `object` for which `counts` is true.
    fn held(&self, object: &Object, counts: impl Fn(&Want) -> bool) -> usize {
        let others = self.0.iter();
        let others = others.filter(|(other, (want, _))| *other != object && counts(want));
        others.map(|(_, (_, known))| known.size()).sum()
    }

    fn is_read(&self, object: &Object) -> bool {
        let known = self.0.get(object).map(|(_, known)| known);
        matches!(known, Some(Known::Keys(_) | Known::Missing))
    }
}

fn beyond(object: &Object, most: usize, of: &str) -> Known {
    Known::Unreadable(format!(
        "{object} is beyond the {} MiB of values that an agent holds {of}; name fewer or smaller ones",
        most >> 20
    ))
}

impl Known {
    fn size(&self) -> usize {
        match self {
            Self::Keys(keys) => size(keys),
            _ => 0,
        }
    }
}

fn size(keys: &Keys) -> usize {
    keys.iter()
        .map(|(key, value)| key.len() + value.len())
        .sum()
}

#[cfg(test)]
mod tests {
    use leafhost_core::properties::ValueKind;

    use super::*;

    fn secret(name: &str) -> Object {
        Object {
            kind: ValueKind::Secret,
            namespace: "site".into(),
            name: name.into(),
        }
    }

    fn mk_want(namespace: &str, rank: usize) -> Want {
        Want {
            keys: ["password".to_owned()].into(),
            namespace: namespace.into(),
            rank,
        }
    }

    fn mk_keys(value: &[u8]) -> Known {
        Known::Keys([("password".to_owned(), value.into())].into())
    }

    fn looked_up(found: &Found, name: &str) -> Lookup {
        found.lookup(&Reference {
            kind: ValueKind::Secret,
            namespace: "site",
            name,
            key: "password",
        })
    }

    #[test]
    fn what_cannot_be_reached_stays_as_it_was_read_and_what_is_forbidden_does_not() {
        let failed = || Err("away".into());
        let want = mk_want("site", 0);
        let mut found = Found::default();
        found.insert(secret("a"), &want, failed());
        assert_eq!(looked_up(&found, "a"), Lookup::Unavailable("away".into()));
        found.insert(secret("a"), &want, Ok(mk_keys(b"x")));
        found.insert(secret("a"), &want, failed());
        assert_eq!(
            looked_up(&found, "a"),
            Lookup::Value(b"x".as_slice().into())
        );
        let forbidden = Ok(Known::Unreadable("forbidden".into()));
        found.insert(secret("a"), &want, forbidden);
        assert_eq!(
            looked_up(&found, "a"),
            Lookup::Unavailable("forbidden".into())
        );
        found.insert(secret("a"), &want, Ok(Known::Missing));
        let missing = Lookup::Missing("Secret site/a does not exist; create it".into());
        assert_eq!(looked_up(&found, "a"), missing);
        found.insert(secret("a"), &want, Ok(Known::Keys(Keys::new())));
        let missing = Lookup::Missing("Secret site/a has no key \"password\"; add it".into());
        assert_eq!(looked_up(&found, "a"), missing);
    }

    /// Reads this many objects of 1 MiB in one namespace, from place `first` on; returns how many are held.
    fn fill(found: &mut Found, namespace: &str, first: usize, number: usize) -> usize {
        for n in 0..number {
            let name = format!("{namespace}-{n}");
            found.insert(
                secret(&name),
                &mk_want(namespace, first + n),
                Ok(mk_keys(&vec![0; (1 << 20) - 8])),
            );
        }
        count(found, namespace, number)
    }

    fn count(found: &Found, namespace: &str, number: usize) -> usize {
        let held = (0..number).map(|n| looked_up(found, &format!("{namespace}-{n}")));
        held.filter(|one| matches!(one, Lookup::Value(_))).count()
    }

    #[test]
    fn the_values_of_a_namespace_and_of_all_are_bounded_and_the_first_stay() {
        let mut found = Found::default();
        // Places decide, not the order of reading.
        for (namespace, first) in [("a", 400), ("b", 100), ("c", 200), ("d", 300)] {
            assert_eq!(fill(&mut found, namespace, first, 9), 8, "{namespace}");
        }
        let Lookup::Unavailable(why) = looked_up(&found, "a-8") else {
            panic!("it is held");
        };
        assert!(
            why.contains("the 8 MiB of values that an agent holds for the Conf"),
            "{why}"
        );
        assert_eq!(fill(&mut found, "z", 0, 2), 2);
        assert_eq!((count(&found, "a", 9), count(&found, "d", 9)), (6, 8));
        assert_eq!(fill(&mut found, "y", 500, 1), 0);
        let Lookup::Unavailable(why) = looked_up(&found, "a-7") else {
            panic!("it is held");
        };
        assert!(
            why.contains("beyond the 32 MiB of values that an agent holds in all"),
            "{why}"
        );
        // Reading the same objects again takes no more room.
        assert_eq!(fill(&mut found, "b", 100, 9), 8);
    }
}
