//! Ownership of handler names by sources. Pure.
//!
//! The first source of a name is trusted with the secrets of Configurations. If that source is removed, a source in one of the node's own folders
//! inherits the trust, and an external handler inherits it from another external one; anyone could have added any other source. If the first file
//! returns, it owns the name again. Sources whose grants name the handler are trusted in any case.

use std::collections::BTreeMap;

use leafhost_core::handler::Registration;
use leafhost_core::ports::{Owner, SourceLocation};

use super::TrustedSource;

/// Maximum number of stored names, each of a handler that was loaded once.
const MAX_NAMES: usize = 1_000;

/// Owners by handler name, as they are stored.
#[derive(Debug, Default)]
pub struct HandlerOwners(pub BTreeMap<String, Owner>);

/// Source whose handler is known.
#[derive(Debug)]
pub struct Candidate<'a> {
    /// Name of the source.
    pub source: &'a str,
    /// Handler and position of the source among those of this handler.
    pub registration: &'a Registration,
    /// Location of the source, if it is known.
    pub location: Option<SourceLocation>,
}

impl HandlerOwners {
    /// Makes the first source of each name without an owner its owner; returns true if there was such a name.
    pub fn record(&mut self, candidates: &[Candidate<'_>]) -> bool {
        let mut differs = false;
        for (handler, first) in firsts(candidates) {
            if let Some(location) = &first.location
                && !self.0.contains_key(handler)
                && self.0.len() < MAX_NAMES
            {
                let owner = Owner {
                    source: first.source.to_owned(),
                    location: location.clone(),
                };
                self.0.insert(handler.to_owned(), owner);
                differs = true;
            }
        }
        differs
    }

    /// Returns the trusted source of each handler name.
    pub fn trusted(&self, candidates: &[Candidate<'_>]) -> BTreeMap<String, TrustedSource> {
        let all = firsts(candidates).into_iter().map(|(handler, first)| {
            let mut trusted = TrustedSource {
                source: first.source.to_owned(),
                is_there: true,
            };
            if let Some(owner) = self.0.get(handler) {
                let is_it = |one: &Candidate<'_>| {
                    let location = one.location.as_ref();
                    one.source == owner.source
                        && location.is_none_or(|location| is_same(&owner.location, location))
                };
                let is_heir = |one: &Candidate<'_>| {
                    let location = one.location.as_ref();
                    location.is_some_and(|location| inherits(&owner.location, location))
                };
                let found = candidates
                    .iter()
                    .filter(|one| one.registration.handler == handler)
                    .filter(|one| is_it(one) || is_heir(one))
                    .min_by_key(|one| (!is_it(one), one.registration.number, one.source));
                let source = found.map_or(owner.source.as_str(), |one| one.source);
                source.clone_into(&mut trusted.source);
                trusted.is_there = found.is_some();
            }
            (handler.to_owned(), trusted)
        });
        all.collect()
    }
}

/// Returns the first source of each handler.
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

/// Returns true if a file of the owner's name at `location` is the owner. A ConfigMap's file replaces a folder's file of that name, and vice
/// versa.
fn is_same(owner: &SourceLocation, location: &SourceLocation) -> bool {
    match (owner, location) {
        (SourceLocation::Folder, SourceLocation::Folder | SourceLocation::ConfigMap { .. })
        | (SourceLocation::ConfigMap { .. }, SourceLocation::Folder) => true,
        _ => owner == location,
    }
}

/// Returns true if a source at `location` inherits the name once the owner is gone. An external handler may come back under another
/// address.
fn inherits(owner: &SourceLocation, location: &SourceLocation) -> bool {
    match location {
        SourceLocation::Folder => true,
        SourceLocation::External => *owner == SourceLocation::External,
        SourceLocation::ConfigMap { .. } => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the trusted source if `owner` had the name `udev` and the sources in `there` exist now, each with its place.
    fn trusted(
        owner: (&str, Option<SourceLocation>),
        there: &[(&str, Option<SourceLocation>)],
    ) -> (String, bool) {
        let registrations: Vec<Registration> = (0..10)
            .map(|number| Registration {
                handler: "udev".to_owned(),
                number,
            })
            .collect();
        let first = Candidate {
            source: owner.0,
            registration: &registrations[0],
            location: owner.1,
        };
        let mut owners = HandlerOwners::default();
        assert!(owners.record(&[first]));
        let mut kept = HandlerOwners(owners.0.clone());
        let there: Vec<Candidate<'_>> = there
            .iter()
            .zip(&registrations[1..])
            .map(|((source, location), registration)| Candidate {
                source,
                registration,
                location: location.clone(),
            })
            .collect();
        assert!(!kept.record(&there));
        let trusted = kept.trusted(&there).remove("udev").unwrap();
        (trusted.source, trusted.is_there)
    }

    #[test]
    fn a_name_is_inherited_by_files_of_the_node_and_not_by_what_others_may_put_there() {
        let of_object = |name: &str| {
            Some(SourceLocation::ConfigMap {
                namespace: "leafhost".to_owned(),
                name: name.to_owned(),
            })
        };
        let folder = || Some(SourceLocation::Folder);
        let external = || Some(SourceLocation::External);
        for (owner, there, expected, is_there) in [
            // The owner exists, whatever else does.
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
            // A source that is not loaded yet has no place.
            (
                ("b.wasm", of_object("x")),
                vec![("a.wasm", of_object("y")), ("b.wasm", None)],
                "b.wasm",
                true,
            ),
            // The owner is gone.
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
            // A file of the node, or another address of an external handler.
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
