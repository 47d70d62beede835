//! Chooses which Secrets and `ConfigMap`s are read if Configurations name more than an agent reads. Pure.
//!
//! An object counts towards the limit of one namespace whose Configurations name it, so that the objects of one user never displace those
//! of another. Objects that are already being read come first.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_core::properties::Reference;

use super::Object;

/// Maximum number of objects read for all Configurations.
pub const MAX_OBJECTS: usize = 1_000;
/// Maximum number of objects read for the Configurations of a namespace.
pub const MAX_OF_NAMESPACE: usize = 250;

/// Objects to read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    objects: BTreeMap<Object, Want>,
    /// Number of objects that are read for the Configurations of each namespace.
    counts: BTreeMap<String, usize>,
}

/// Wanted part of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Want {
    /// Wanted keys.
    pub keys: BTreeSet<String>,
    /// Namespace towards whose limit the object counts.
    pub namespace: String,
    /// Rank of the object among all.
    pub rank: usize,
}

/// Keys of an object, and the namespaces that ask for it.
#[derive(Default)]
struct Asked<'a> {
    keys: BTreeSet<&'a str>,
    /// Namespaces in the order in which they ask.
    namespaces: Vec<&'a str>,
}

impl Wanted {
    /// Chooses the objects among `references`, each with the namespace of its Configuration; `before` holds the previous choice.
    pub fn of<'a>(
        references: impl Iterator<Item = (&'a str, Reference<'a>)>,
        before: &Self,
    ) -> Self {
        let mut order = Vec::new();
        let mut asked: BTreeMap<Object, Asked<'a>> = BTreeMap::new();
        for (namespace, reference) in references {
            let object = Object::of(&reference);
            let one = asked.entry(object.clone()).or_default();
            if one.keys.is_empty() {
                order.push(object);
            }
            one.keys.insert(reference.key);
            if !one.namespaces.contains(&namespace) {
                one.namespaces.push(namespace);
            }
        }
        let (read, new): (Vec<_>, Vec<_>) = order
            .into_iter()
            .partition(|object| before.objects.contains_key(object));
        let mut wanted = Self::default();
        for object in read.into_iter().chain(new) {
            let Some(one) = asked.remove(&object) else {
                continue;
            };
            let earlier = before.objects.get(&object);
            let earlier = earlier.map(|earlier| earlier.namespace.as_str());
            let same = one.namespaces.iter().find(|one| Some(**one) == earlier);
            let mut namespaces = same.into_iter().chain(&one.namespaces);
            if let Some(namespace) = namespaces.find(|one| wanted.count(one) < MAX_OF_NAMESPACE) {
                wanted.add(object, &one, namespace);
            }
        }
        wanted
    }

    fn add(&mut self, object: Object, asked: &Asked<'_>, namespace: &str) {
        let rank = self.objects.len();
        if rank >= MAX_OBJECTS {
            return;
        }
        let count = self.counts.entry(namespace.to_owned()).or_default();
        *count = count.saturating_add(1);
        let want = Want {
            keys: asked.keys.iter().map(|key| (*key).to_owned()).collect(),
            namespace: namespace.to_owned(),
            rank,
        };
        self.objects.insert(object, want);
    }

    fn count(&self, namespace: &str) -> usize {
        self.counts.get(namespace).copied().unwrap_or_default()
    }

    /// Returns the chosen objects.
    pub fn objects(&self) -> impl Iterator<Item = (&Object, &Want)> {
        self.objects.iter()
    }

    /// Returns the wanted part of an object.
    pub fn get(&self, object: &Object) -> Option<&Want> {
        self.objects.get(object)
    }

    /// Returns true if the object that `reference` names is one to read.
    pub fn has(&self, reference: &Reference<'_>) -> bool {
        self.objects.contains_key(&Object::of(reference))
    }

    /// Returns why a value that a Configuration of `namespace` names is not read, or `None` if it is read.
    pub fn refusal(&self, namespace: &str, reference: &Reference<'_>) -> Option<String> {
        if self.has(reference) {
            return None;
        }
        let object = Object::of(reference);
        let cap = if self.count(namespace) >= MAX_OF_NAMESPACE {
            format!(
                "{MAX_OF_NAMESPACE} Secrets and ConfigMaps that an agent reads for the Configurations of a namespace"
            )
        } else {
            format!("{MAX_OBJECTS} Secrets and ConfigMaps that an agent reads")
        };
        Some(format!("{object} is beyond the {cap}; name fewer"))
    }
}

#[cfg(test)]
mod tests {
    use leafhost_core::properties::ValueKind;

    use super::*;

    /// Returns this many names of Secrets.
    fn mk_names(number: usize) -> Vec<String> {
        (0..number).map(|number| format!("s{number:04}")).collect()
    }

    fn named<'a>(
        by: &'a str,
        namespace: &'a str,
        names: &'a [String],
    ) -> impl Iterator<Item = (&'a str, Reference<'a>)> {
        names.iter().map(move |name| {
            let reference = Reference {
                kind: ValueKind::Secret,
                namespace,
                name,
                key: "password",
            };
            (by, reference)
        })
    }

    fn count(wanted: &Wanted, by: &str) -> usize {
        let objects = wanted.objects();
        objects.filter(|(_, want)| want.namespace == by).count()
    }

    #[test]
    fn a_namespace_has_its_share_whatever_it_names_and_the_rest_say_why() {
        let (many, few) = (mk_names(1_000), mk_names(2));
        for rank in ["aaa", "shared"] {
            let references = named("aaa", rank, &many).chain(named("zzz", "zzz", &few));
            let wanted = Wanted::of(references, &Wanted::default());
            assert_eq!(
                (count(&wanted, "aaa"), count(&wanted, "zzz")),
                (MAX_OF_NAMESPACE, 2)
            );
            let refusals = named("aaa", rank, &many);
            let refusals = refusals.filter_map(|(by, one)| wanted.refusal(by, &one));
            let refusals: Vec<_> = refusals.collect();
            assert_eq!(refusals.len(), 1_000 - MAX_OF_NAMESPACE);
            assert!(
                refusals[0].contains("of a namespace; name fewer"),
                "{}",
                refusals[0]
            );
        }
    }

    #[test]
    fn what_is_read_stays_whoever_asks_first_for_more() {
        let (names, more) = (mk_names(MAX_OF_NAMESPACE), mk_names(MAX_OF_NAMESPACE));
        let served = ["b", "c", "d", "e"];
        let all = || served.iter().flat_map(|by| named(by, by, &names));
        let before = Wanted::of(all(), &Wanted::default());
        assert_eq!(before.objects().count(), MAX_OBJECTS);
        let after = Wanted::of(named("a", "a", &more).chain(all()), &before);
        assert_eq!(
            (count(&after, "a"), count(&after, "e")),
            (0, MAX_OF_NAMESPACE)
        );
        let (by, reference) = named("a", "a", &more).next().unwrap();
        let refusal = after.refusal(by, &reference).unwrap();
        assert!(refusal.contains("beyond the 1000 Secrets"), "{refusal}");
    }

    #[test]
    fn one_that_several_name_counts_for_one_that_has_room() {
        let (many, shared) = (mk_names(MAX_OF_NAMESPACE), ["z".to_owned()]);
        let references = named("a", "a", &many)
            .chain(named("a", "shared", &shared))
            .chain(named("b", "shared", &shared));
        let wanted = Wanted::of(references, &Wanted::default());
        assert_eq!(
            (count(&wanted, "a"), count(&wanted, "b")),
            (MAX_OF_NAMESPACE, 1)
        );
    }
}
