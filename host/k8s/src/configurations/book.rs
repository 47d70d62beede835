//! What was read of each Configuration, and what serves. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use leafhost_core::configuration::{
    Configuration, FieldProblem, MAX_CONFIGURATIONS, Manifest, Metadata, Spec,
};
use leafhost_core::names::{API_VERSION, ConfigurationKey};
use leafhost_core::ports::{ConfigurationSet, ConfiguredDiscovery, SourceProblem};
use leafhost_core::properties::{self, Reference};
use leafhost_core::resource_names::NameSet;
use leafhost_core::text;
use serde_json::Value;

use crate::values::Found;

/// The most Configurations that one message names.
const MAX_NAMED: usize = 5;

/// Namespace and name of an object, whatever they are.
type Name = (String, String);

/// The objects, and those of a list that is being read.
#[derive(Debug, Default)]
pub struct Book {
    entries: BTreeMap<Name, Entry>,
    /// Those beyond the most.
    beyond: BTreeSet<Name>,
    /// What the list has so far.
    listing: Option<(BTreeMap<Name, Entry>, BTreeSet<Name>)>,
    is_complete: bool,
    /// Whether the objects are those of an earlier agent.
    is_remembered: bool,
}

/// An object.
#[derive(Debug, Default)]
struct Entry {
    uid: String,
    /// The last version that can be used.
    good: Option<Arc<Configuration>>,
    /// The object that says so.
    source: Option<Arc<DynamicObject>>,
    problems: Vec<SourceProblem>,
}

impl Book {
    /// What an earlier agent knew; it serves until the first whole list.
    pub fn remember(&mut self, objects: Vec<DynamicObject>) {
        self.is_remembered = true;
        for object in objects {
            self.apply(object);
        }
    }

    /// What the next agent should know; nothing before the first whole list.
    pub fn worth_keeping(&self) -> Option<Vec<DynamicObject>> {
        let sources = self.entries.values();
        let sources = sources.filter_map(|entry| entry.source.as_deref().cloned());
        self.is_complete.then(|| sources.collect())
    }

    /// A list begins.
    pub fn begin(&mut self) {
        self.listing = Some(Default::default());
    }

    /// An object of the list.
    pub fn list(&mut self, object: DynamicObject) {
        let name = name_of(&object);
        let earlier = self.entries.get(&name);
        let (entries, beyond) = self.listing.get_or_insert_default();
        if entries.len() < MAX_CONFIGURATIONS {
            entries.insert(name, Entry::read(object, earlier));
        } else {
            beyond.insert(name);
        }
    }

    /// The list has ended: what it does not have is gone.
    pub fn finish(&mut self) {
        if let Some((entries, beyond)) = self.listing.take() {
            (self.entries, self.beyond) = (entries, beyond);
            (self.is_complete, self.is_remembered) = (true, false);
        }
    }

    /// An object is new or has changed.
    pub fn apply(&mut self, object: DynamicObject) {
        let name = name_of(&object);
        if self.entries.len() < MAX_CONFIGURATIONS || self.entries.contains_key(&name) {
            let entry = Entry::read(object, self.entries.get(&name));
            self.entries.insert(name, entry);
        } else {
            self.beyond.insert(name);
        }
    }

    /// An object is gone. Returns whether there is room now for one that was too many.
    pub fn delete(&mut self, object: &DynamicObject) -> bool {
        let name = name_of(object);
        self.beyond.remove(&name);
        self.entries.remove(&name).is_some() && !self.beyond.is_empty()
    }

    /// The values that are to be looked up.
    pub fn references<'a>(
        &'a self,
        namespaces: &'a BTreeSet<String>,
    ) -> impl Iterator<Item = Reference<'a>> {
        let good = self
            .entries
            .values()
            .filter_map(|entry| entry.good.as_ref());
        good.flat_map(|good| properties::references(good, Some(namespaces)))
    }

    /// What serves. While values of a Configuration are being read, it serves as it did `before`. What has which of the `names` must be
    /// known, or a Configuration could get what is another namespace's.
    pub fn set(
        &self,
        namespaces: &BTreeSet<String>,
        found: &Found,
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
        for (name, entry) in &self.entries {
            set.problems.extend(entry.problems.iter().cloned());
            let Some(good) = &entry.good else {
                continue;
            };
            let earlier = before.accepted.get(&good.key);
            let mut references = properties::references(good, Some(namespaces));
            if references.any(|reference| !found.has(&reference)) {
                is_pending = true;
                let serving = earlier.map(|earlier| (good.key.clone(), Arc::clone(earlier)));
                set.accepted.extend(serving);
                continue;
            }
            let properties =
                properties::resolve(good, Some(namespaces), |reference| found.lookup(reference));
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
        if !self.beyond.is_empty() {
            let names = self
                .beyond
                .iter()
                .map(|(namespace, name)| format!("{namespace}/{name}"));
            let message = format!(
                "there are {} beyond the {MAX_CONFIGURATIONS} that an agent takes, which are not used: {}; remove some, or let one find more devices",
                self.beyond.len(),
                text::few(names, MAX_NAMED)
            );
            set.problems
                .push(SourceProblem::new("Configurations", message));
        }
        set.complete = self.is_complete && names.is_known && (before.complete || !is_pending);
        if !set.complete && !self.is_remembered {
            // Not all that it names could be read, so nothing may be concluded from it.
            set.accepted.clear();
        }
        set
    }
}

impl Entry {
    /// Reads an object. While it cannot be used, the last version of the same object that could be serves.
    fn read(object: DynamicObject, earlier: Option<&Self>) -> Self {
        let name = name_of(&object);
        let uid = object.uid().unwrap_or_default();
        let is_deleting = object.metadata.deletion_timestamp.is_some();
        let key = ConfigurationKey::new(&name.0, &name.1).ok();
        let told = |field: FieldProblem| problem(&name, key.as_ref(), &field.path, field.message);
        let source = Arc::new(object);
        match manifest(&source) {
            Ok(manifest) => match Configuration::try_from(manifest) {
                Ok(good) => Self {
                    uid,
                    good: Some(Arc::new(good)),
                    source: Some(source),
                    problems: Vec::new(),
                },
                Err(problems) => {
                    let problems = problems.into_iter().map(told).collect();
                    Self::bad(uid, is_deleting, problems, earlier)
                }
            },
            Err(problem) => Self::bad(uid, is_deleting, vec![told(problem)], earlier),
        }
    }

    fn bad(
        uid: String,
        is_deleting: bool,
        mut problems: Vec<SourceProblem>,
        earlier: Option<&Self>,
    ) -> Self {
        let earlier = earlier.filter(|earlier| earlier.uid == uid);
        let source = earlier.and_then(|earlier| earlier.source.clone());
        let mut good = earlier.and_then(|earlier| earlier.good.clone());
        if let Some(good) = &mut good {
            if is_deleting && !good.deleting {
                Arc::make_mut(good).deleting = true;
            }
            for problem in &mut problems {
                problem.message += "; until that is right, the last accepted version keeps serving";
            }
        }
        Self {
            uid,
            good,
            source,
            problems,
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

/// The object as the agent reads it, or the field that cannot be read.
pub fn manifest(object: &DynamicObject) -> Result<Manifest, FieldProblem> {
    let metadata = object.metadata.clone();
    let spec = object.data.get("spec").unwrap_or(&Value::Null);
    let spec: Spec = serde_path_to_error::deserialize(spec).map_err(|error| {
        let path = error.path().to_string();
        let path = match path.as_str() {
            "." => "spec".to_owned(),
            path => format!("spec.{path}"),
        };
        FieldProblem::new(path, error.into_inner().to_string())
    })?;
    Ok(Manifest {
        api_version: API_VERSION.to_owned(),
        kind: "Configuration".to_owned(),
        metadata: Metadata {
            name: metadata.name.unwrap_or_default(),
            namespace: metadata.namespace,
            uid: metadata.uid,
            generation: metadata.generation,
            creation_timestamp: metadata.creation_timestamp.map(|time| time.0.to_string()),
            deletion_timestamp: metadata.deletion_timestamp.map(|time| time.0.to_string()),
            annotations: metadata.annotations.unwrap_or_default(),
        },
        spec,
    })
}

#[cfg(test)]
mod tests;
