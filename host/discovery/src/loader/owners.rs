//! Which source a handler's name belongs to. Pure.
//!
//! The first source of a name is trusted with what Configurations keep secret. If it goes, a source that somebody else may have put there does
//! not inherit that: only one of the node's own folders does, or one that its grants name. The same file that comes back has the name again.

use std::collections::BTreeMap;

use leafhost_core::handler::Registration;
use leafhost_core::ports::{Owner, Place};

use super::TrustedSource;

/// The most names that are kept. Each is the name of a handler that was loaded once.
const MAX_NAMES: usize = 1_000;

/// Who has which name.
#[derive(Debug, Default)]
pub struct Owners(BTreeMap<String, Owner>);

/// A source that has said which handler it is.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// Its name.
    pub source: &'a str,
    /// The handler, and the place of the source among those of it.
    pub registration: &'a Registration,
    /// Where it is, if that is known.
    pub place: Option<Place>,
}

impl Owners {
    /// As they were kept.
    pub fn new(kept: BTreeMap<String, Owner>) -> Self {
        Self(kept)
    }

    /// What is to be kept.
    pub fn kept(&self) -> &BTreeMap<String, Owner> {
        &self.0
    }

    /// Gives each name that belongs to nobody yet to its first source. Returns whether there is such a name.
    pub fn record(&mut self, candidates: &[Candidate<'_>]) -> bool {
        let mut differs = false;
        for (handler, first) in firsts(candidates) {
            if let Some(place) = &first.place
                && !self.0.contains_key(handler)
                && self.0.len() < MAX_NAMES
            {
                let owner = Owner {
                    source: first.source.to_owned(),
                    place: place.clone(),
                };
                self.0.insert(handler.to_owned(), owner);
                differs = true;
            }
        }
        differs
    }

    /// The source of each name that is trusted.
    pub fn trusted(&self, candidates: &[Candidate<'_>]) -> BTreeMap<String, TrustedSource> {
        let all = firsts(candidates).into_iter().map(|(handler, first)| {
            let trusted = |source: &str, is_there| TrustedSource {
                source: source.to_owned(),
                is_there,
            };
            let Some(owner) = self.0.get(handler) else {
                return (handler.to_owned(), trusted(first.source, true));
            };
            let of_handler = candidates.iter();
            let of_handler = of_handler.filter(|one| one.registration.handler == handler);
            let is_it = |one: &Candidate<'_>| {
                let place = one.place.as_ref();
                one.source == owner.source && place.is_none_or(|place| is_same(&owner.place, place))
            };
            let heirs = of_handler.clone().filter(|one| {
                let place = one.place.as_ref();
                place.is_some_and(|place| inherits(&owner.place, place))
            });
            let heir = heirs.min_by_key(|one| (one.registration.number, one.source));
            let source = if of_handler.clone().any(is_it) {
                trusted(&owner.source, true)
            } else if let Some(heir) = heir {
                trusted(heir.source, true)
            } else {
                trusted(&owner.source, false)
            };
            (handler.to_owned(), source)
        });
        all.collect()
    }
}

/// The first source of each handler.
fn firsts<'a>(candidates: &'a [Candidate<'a>]) -> BTreeMap<&'a str, &'a Candidate<'a>> {
    let mut firsts: BTreeMap<&str, &Candidate<'_>> = BTreeMap::new();
    for one in candidates {
        let first = firsts.entry(&one.registration.handler).or_insert(one);
        let rank = |one: &Candidate<'a>| (one.registration.number, one.source);
        if rank(one) < rank(first) {
            *first = one;
        }
    }
    firsts
}

/// Whether a file of the owner's name is the owner. One of a ConfigMap takes the place of a folder's with its name, and the other way round.
fn is_same(owner: &Place, place: &Place) -> bool {
    match (owner, place) {
        (Place::Folder, Place::Folder | Place::ConfigMap { .. })
        | (Place::ConfigMap { .. }, Place::Folder) => true,
        _ => owner == place,
    }
}

/// Whether another file has the name once the owner is gone. Handlers that serve elsewhere may come back under another address.
fn inherits(owner: &Place, place: &Place) -> bool {
    match place {
        Place::Folder => true,
        Place::External => *owner == Place::External,
        Place::ConfigMap { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The trusted source if the `owner` had the name `udev` and these are there now, each with its place.
    fn trusted(owner: (&str, Option<Place>), there: &[(&str, Option<Place>)]) -> (String, bool) {
        let registrations: Vec<Registration> = (0..10)
            .map(|number| Registration {
                handler: "udev".to_owned(),
                number,
            })
            .collect();
        let first = Candidate {
            source: owner.0,
            registration: &registrations[0],
            place: owner.1,
        };
        let mut owners = Owners::default();
        assert!(owners.record(&[first]));
        let mut kept = Owners::new(owners.kept().clone());
        let there: Vec<Candidate<'_>> = there
            .iter()
            .zip(&registrations[1..])
            .map(|((source, place), registration)| Candidate {
                source,
                registration,
                place: place.clone(),
            })
            .collect();
        assert!(!kept.record(&there));
        let trusted = kept.trusted(&there).remove("udev").unwrap();
        (trusted.source, trusted.is_there)
    }

    #[test]
    fn a_name_is_inherited_by_files_of_the_node_and_not_by_what_others_may_put_there() {
        let of_object = |name: &str| {
            Some(Place::ConfigMap {
                namespace: "leafhost".to_owned(),
                name: name.to_owned(),
            })
        };
        let folder = || Some(Place::Folder);
        let external = || Some(Place::External);
        for (owner, there, expected, is_there) in [
            // The owner is there, whatever else is.
            (
                ("b.wasm", folder()),
                vec![("a.wasm", folder()), ("b.wasm", folder())],
                "b.wasm",
                true,
            ),
            (
                ("b.wasm", of_object("x")),
                vec![("b.wasm", of_object("x"))],
                "b.wasm",
                true,
            ),
            (
                ("b.wasm", folder()),
                vec![("b.wasm", of_object("x"))],
                "b.wasm",
                true,
            ),
            (
                ("b.wasm", of_object("x")),
                vec![("b.wasm", folder())],
                "b.wasm",
                true,
            ),
            // What is not loaded yet has no place.
            (
                ("b.wasm", of_object("x")),
                vec![("a.wasm", of_object("y")), ("b.wasm", None)],
                "b.wasm",
                true,
            ),
            // It is gone.
            (
                ("b.wasm", of_object("x")),
                vec![("a.wasm", of_object("x"))],
                "b.wasm",
                false,
            ),
            (
                ("b.wasm", of_object("x")),
                vec![("b.wasm", of_object("y"))],
                "b.wasm",
                false,
            ),
            (
                ("b.wasm", folder()),
                vec![("a.wasm", of_object("y"))],
                "b.wasm",
                false,
            ),
            (
                ("b.wasm", folder()),
                vec![("udev@a.sock", external())],
                "b.wasm",
                false,
            ),
            (
                ("b.wasm", folder()),
                vec![("b.wasm", external())],
                "b.wasm",
                false,
            ),
            (
                ("udev@a.sock", external()),
                vec![("a.wasm", of_object("y"))],
                "udev@a.sock",
                false,
            ),
            // A file of the node, or another address of a handler that serves elsewhere.
            (
                ("b.wasm", folder()),
                vec![("a.wasm", of_object("y")), ("c.wasm", folder())],
                "c.wasm",
                true,
            ),
            (
                ("b.wasm", of_object("x")),
                vec![("c.wasm", folder())],
                "c.wasm",
                true,
            ),
            (
                ("udev@1", external()),
                vec![("udev@2", external())],
                "udev@2",
                true,
            ),
        ] {
            let shown = format!("{owner:?} {there:?}");
            assert_eq!(
                trusted(owner, &there),
                (expected.to_owned(), is_there),
                "{shown}"
            );
        }
    }
}
