//! Keeps the Configurations that were read, and computes the set that the agent serves. Pure.
//!
//! Does not use `crate::index`, because the ranks of the objects that were taken before bound a list while it is read.

use std::collections::BTreeSet;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use leafhost_core::configuration::{Configuration, FieldProblem, MAX_CONFIGURATIONS};
use leafhost_core::names::{ConfigurationKey, is_handler_name};
use leafhost_core::ports::{ConfigurationSet, ConfiguredDiscovery, SourceProblem};
use leafhost_core::properties::{self, Lookup, Reference};
use leafhost_core::resource_names::NameSet;
use serde_json::Value;

use super::capped_set::{CappedSet, MAX_OF_NAMESPACE, Name, Object, Rank};
use crate::agent::values::{Found, Wanted};
use crate::manifest;

/// Maximum number of Configurations that one message names.
const MAX_NAMED: usize = 5;
/// Prefix of the annotations that agents read.
const ANNOTATIONS: &str = "leafhost.dev/";
/// Fields of a spec that agents do not use.
const UNUSED: [&str; 3] = [
    "brokerSpec",
    "instanceServiceSpec",
    "configurationServiceSpec",
];

/// Taken objects, and those of a list that is being read.
#[derive(Debug, Default)]
pub struct ConfigurationIndex {
    taken: CappedSet<Entry>,
    /// Objects read so far of the current list, if there is one.
    listing: Option<CappedSet<Entry>>,
    is_complete: bool,
    /// True while the objects are those of an earlier agent.
    is_remembered: bool,
}

/// A Configuration object as it was read.
#[derive(Debug, Default)]
struct Entry {
    uid: String,
    /// Last valid version.
    good: Option<Arc<Configuration>>,
    /// Object from which `good` was read.
    source: Option<Arc<DynamicObject>>,
    problems: Vec<SourceProblem>,
}

impl ConfigurationIndex {
    /// Loads the objects of an earlier agent; they serve until the first complete list.
    pub fn remember(&mut self, objects: Vec<DynamicObject>) {
        self.is_remembered = true;
        for object in objects {
            let name = name_of(&object);
            let object = read(object, None);
            self.taken.put(None, name, object);
        }
        self.taken.settle();
    }

    /// Returns the objects to keep for the next agent, or `None` before the first complete list.
    pub fn worth_keeping(&self) -> Option<Vec<DynamicObject>> {
        let sources = self.taken.by_name();
        let sources = sources.filter_map(|(_, entry)| entry.source.as_deref().cloned());
        self.is_complete.then(|| sources.collect())
    }

    /// Begins a list.
    pub fn begin(&mut self) {
        self.listing = Some(CappedSet::default());
    }

    /// Adds an object of the list.
    pub fn list(&mut self, object: DynamicObject) {
        let name = name_of(&object);
        let object = read(object, self.taken.get(&name));
        let listing = self.listing.get_or_insert_default();
        listing.put(Some(&self.taken), name, object);
    }

    /// Ends the list; objects that are not in it are gone.
    pub fn finish(&mut self) {
        if let Some(listing) = self.listing.take() {
            self.taken = listing;
            self.taken.settle();
            (self.is_complete, self.is_remembered) = (true, false);
        }
    }

    /// Takes an object that is new or has changed.
    pub fn apply(&mut self, object: DynamicObject) {
        let name = name_of(&object);
        let object = read(object, self.taken.get(&name));
        self.taken.put(None, name, object);
        self.taken.settle();
    }

    /// Removes an object.
    pub fn delete(&mut self, object: &DynamicObject) {
        self.taken.remove(&name_of(object));
    }

    /// Returns true if another list could bring objects that fit now.
    pub fn has_room(&self) -> bool {
        self.taken.has_room()
    }

    /// Returns the values to look up, each with the namespace of the Configuration that names it: first those of Configurations that were
    /// taken before, then those of the oldest.
    pub fn references<'a>(
        &'a self,
        namespaces: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = (&'a str, Reference<'a>)> {
        let good = self.taken.by_rank().filter_map(|entry| entry.good.as_ref());
        good.flat_map(|good| {
            let references = properties::references(good, Some(namespaces));
            references.map(|reference| (good.key.namespace(), reference))
        })
    }

    /// Returns the set that the agent serves. A Configuration whose values are still being read stays as it is in `before`. The set is
    /// complete only once `names` are known: without them, a Configuration could get the devices of another namespace.
    pub fn set(
        &self,
        namespaces: &BTreeSet<String>,
        (wanted, found): (&Wanted, &Found),
        names: &NameSet,
        before: &ConfigurationSet,
    ) -> ConfigurationSet {
        let mut set = ConfigurationSet {
            names: Arc::clone(&names.names),
            ..ConfigurationSet::default()
        };
        let unread = names.problem.as_ref();
        let unread = unread.map(|why| SourceProblem::new("ResourceNames", why));
        set.problems.extend(unread);
        let mut is_pending = false;
        for (name, entry) in self.taken.by_name() {
            set.problems.extend(entry.problems.iter().cloned());
            let Some(good) = &entry.good else {
                continue;
            };
            let earlier = before.accepted.get(&good.key);
            let own = good.key.namespace();
            let mut references = properties::references(good, Some(namespaces));
            if references.any(|reference| wanted.has(&reference) && !found.has(&reference)) {
                is_pending = true;
                let serving = earlier.map(|earlier| (good.key.clone(), Arc::clone(earlier)));
                set.accepted.extend(serving);
                continue;
            }
            let lookup = |reference: &Reference<'_>| {
                let refusal = wanted.refusal(own, reference);
                refusal.map_or_else(|| found.lookup(reference), Lookup::Unavailable)
            };
            let properties = properties::resolve(good, Some(namespaces), lookup);
            if let Err(wrong) = &properties {
                let message = format!("{}; the handler is not called", wrong.message);
                set.problems
                    .push(problem(name, Some(&good.key), &wrong.path, message));
            }
            let same = earlier.filter(|earlier| {
                earlier.configuration == **good && earlier.properties == properties
            });
            let discovery = same.cloned().unwrap_or_else(|| {
                Arc::new(ConfiguredDiscovery {
                    configuration: Configuration::clone(good),
                    properties,
                })
            });
            set.accepted.insert(good.key.clone(), discovery);
        }
        self.tell_left_out(&mut set);
        set.complete = self.is_complete && names.is_known && (before.complete || !is_pending);
        if !set.complete && !self.is_remembered {
            // The list, the names or some values are not read yet, so nothing may be concluded from the set.
            set.accepted.clear();
        }
        set
    }

    fn tell_left_out(&self, set: &mut ConfigurationSet) {
        let count = self.taken.left_out_count();
        if count == 0 {
            return;
        }
        let mut names = Vec::new();
        for (namespace, name, one) in self.taken.left_out() {
            if names.len() < MAX_NAMED {
                names.push(format!("{namespace}/{name}"));
            }
            let Ok(key) = ConfigurationKey::new(namespace, name) else {
                continue;
            };
            set.left_out.insert(key, one.what.clone());
        }
        let message = format!(
            "{count} are not used, since an agent takes {MAX_OF_NAMESPACE} of a namespace and {MAX_CONFIGURATIONS} of all, such as {}; remove some, or let one find more devices",
            names.join(", ")
        );
        set.problems
            .push(SourceProblem::new("Configurations", message));
    }
}

/// Reads an object without the parts that agents do not use.
fn read(mut object: DynamicObject, earlier: Option<&Entry>) -> Object<Entry> {
    let metadata = &mut object.metadata;
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.retain(|name, _| name.starts_with(ANNOTATIONS));
    }
    if let Value::Object(data) = &mut object.data {
        data.remove("status");
        if let Some(Value::Object(spec)) = data.get_mut("spec") {
            spec.retain(|field, _| !UNUSED.contains(&field.as_str()));
        }
    }
    let uid = object.metadata.uid.as_deref().unwrap_or_default();
    let handler = object.data.pointer("/spec/discoveryHandler/name");
    let handler = handler.and_then(Value::as_str).unwrap_or_default();
    Object {
        rank: Rank::new(object.metadata.creation_timestamp.clone(), uid),
        bytes: serde_json::to_vec(&object).map_or(0, |bytes| bytes.len()),
        handler: if is_handler_name(handler) {
            handler.to_owned()
        } else {
            String::new()
        },
        generation: object.metadata.generation,
        value: Entry::read(object, earlier),
    }
}

impl Entry {
    /// Reads an object. If it is invalid, the last valid version of the same object stays in use.
    fn read(object: DynamicObject, earlier: Option<&Self>) -> Self {
        let name = name_of(&object);
        let uid = object.uid().unwrap_or_default();
        let is_deleting = object.metadata.deletion_timestamp.is_some();
        let source = Arc::new(object);
        let read = manifest::read(&source).map_err(|problem| vec![problem]);
        let problems = match read.and_then(Configuration::try_from) {
            Ok(good) => {
                return Self {
                    uid,
                    good: Some(Arc::new(good)),
                    source: Some(source),
                    problems: Vec::new(),
                };
            }
            Err(problems) => problems,
        };
        let earlier = earlier.filter(|earlier| earlier.uid == uid);
        let mut good = earlier.and_then(|earlier| earlier.good.clone());
        if let Some(good) = &mut good
            && is_deleting
            && !good.deleting
        {
            Arc::make_mut(good).deleting = true;
        }
        let note = match good {
            Some(_) => "; until it is corrected, the last accepted version stays in use",
            None => "",
        };
        let key = ConfigurationKey::new(&name.0, &name.1).ok();
        let problems = problems.into_iter().map(|field: FieldProblem| {
            let message = field.message + note;
            problem(&name, key.as_ref(), &field.path, message)
        });
        Self {
            uid,
            good,
            source: earlier.and_then(|earlier| earlier.source.clone()),
            problems: problems.collect(),
        }
    }
}

fn name_of(object: &DynamicObject) -> Name {
    (object.namespace().unwrap_or_default(), object.name_any())
}

fn problem(
    (namespace, name): &Name,
    configuration: Option<&ConfigurationKey>,
    path: &str,
    message: String,
) -> SourceProblem {
    SourceProblem {
        path: path.to_owned(),
        configuration: configuration.cloned(),
        ..SourceProblem::new(format!("Configuration {namespace}/{name}"), message)
    }
}

#[cfg(test)]
mod tests;
