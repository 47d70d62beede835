//! State of the ConfigMaps with handlers: the known objects, the time of the next fetch of each, and the resulting set of sources. Pure.
//!
//! Does not use `crate::index`, because a list has only metadata, and fetched contents outlive it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use leafhost_core::handler::MOST_HANDLERS;
use leafhost_core::node_report::ObjectName;
use leafhost_core::ports::{GrantsFile, SourceProblem, SourceSet};
use leafhost_core::timeouts;
use tokio::time::Instant;

use super::contents::Contents;
use crate::backoff;

/// Maximum number of fetched ConfigMaps: with one handler in each, more could not be loaded.
const MOST: usize = MOST_HANDLERS;

/// All ConfigMaps with handlers.
#[derive(Debug, Default)]
pub struct Objects {
    namespace: String,
    by_name: BTreeMap<String, Object>,
    /// Objects of a list that has not ended yet.
    listing: BTreeMap<String, Meta>,
    /// True once a list has ended.
    listed: bool,
    /// Reason why listing or watching fails at the moment.
    pub failure: Option<String>,
}

#[derive(Debug, Default)]
struct Object {
    meta: Meta,
    held: Option<Held>,
    /// Time of the next fetch.
    due: Option<Instant>,
    /// Failures in a row.
    failures: u32,
    problem: Option<String>,
}

/// Metadata of an object, as the watch carries it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Meta {
    created: Option<Time>,
    uid: String,
    version: String,
}

/// Contents of an object that is on disk.
#[derive(Debug)]
pub struct Held {
    meta: Meta,
    contents: Contents,
}

impl Held {
    /// Reads the contents of a whole object.
    pub fn of(object: &ConfigMap) -> Self {
        Self {
            meta: Meta::of(&object.metadata),
            contents: Contents::of(object),
        }
    }
}

impl Meta {
    fn of(meta: &ObjectMeta) -> Self {
        Self {
            created: meta.creation_timestamp.clone(),
            uid: meta.uid.clone().unwrap_or_default(),
            version: meta.resource_version.clone().unwrap_or_default(),
        }
    }
}

impl Object {
    /// Returns true if the held contents are at least as new as the metadata. Resource versions of one resource are increasing numbers.
    fn is_current(&self) -> bool {
        self.held.as_ref().is_some_and(|held| {
            let number = |version: &str| version.parse::<u64>().ok();
            let (held, seen) = (&held.meta, &self.meta);
            let (held_at, seen_at) = (number(&held.version), number(&seen.version));
            let is_new = held_at
                .zip(seen_at)
                .is_some_and(|(held, seen)| held >= seen);
            held.uid == seen.uid && (is_new || held.version == seen.version)
        })
    }
}

impl Objects {
    /// Creates the state for a namespace, with the objects on disk from an earlier run.
    pub fn new(namespace: &str, kept: impl Iterator<Item = ConfigMap>) -> Self {
        let of_namespace =
            kept.filter(|object| object.metadata.namespace.as_deref() == Some(namespace));
        let known = of_namespace.filter_map(|object| {
            let known = Object {
                meta: Meta::of(&object.metadata),
                held: Some(Held::of(&object)),
                ..Object::default()
            };
            Some((object.metadata.name?, known))
        });
        Self {
            namespace: namespace.to_owned(),
            by_name: known.collect(),
            ..Self::default()
        }
    }

    /// Begins a list.
    pub fn list(&mut self) {
        self.listing.clear();
    }

    /// Adds an object to the list.
    pub fn list_one(&mut self, meta: &ObjectMeta) {
        let name = meta.name.clone().unwrap_or_default();
        self.listing.insert(name, Meta::of(meta));
    }

    /// Ends the list; objects that are not in it are gone.
    pub fn list_end(&mut self, due: impl Fn() -> Instant) {
        let listed = std::mem::take(&mut self.listing);
        self.by_name.retain(|name, _| listed.contains_key(name));
        for (name, meta) in listed {
            self.see(name, meta, &due);
        }
        self.listed = true;
    }

    /// Takes an object that was created or changed.
    pub fn changed(&mut self, meta: &ObjectMeta, due: impl Fn() -> Instant) {
        let name = meta.name.clone().unwrap_or_default();
        self.see(name, Meta::of(meta), &due);
    }

    /// Removes an object that is gone or has lost the label.
    pub fn gone(&mut self, meta: &ObjectMeta) {
        self.by_name
            .remove(meta.name.as_deref().unwrap_or_default());
    }

    fn see(&mut self, name: String, meta: Meta, due: &impl Fn() -> Instant) {
        let object = self.by_name.entry(name).or_default();
        object.meta = meta;
        if object.is_current() {
            object.due = None;
            object.problem = None;
        } else if object.due.is_none() {
            object.due = Some(due());
        }
    }

    /// Returns the time of the next fetch.
    pub fn next(&self) -> Option<Instant> {
        self.used().filter_map(|(_, object)| object.due).min()
    }

    /// Returns the names of at most `most` objects that are due; these objects are no longer due.
    pub fn take_due(&mut self, now: Instant, most: usize) -> Vec<String> {
        let is_due = |object: &Object| object.due.is_some_and(|due| due <= now);
        let due = self.used().filter(|(_, object)| is_due(object));
        let names: Vec<String> = due.map(|(name, _)| name.clone()).take(most).collect();
        for name in &names {
            if let Some(object) = self.by_name.get_mut(name) {
                object.due = None;
            }
        }
        names
    }

    /// Records that an object was fetched and is on disk. An object that has changed since the fetch is fetched again.
    pub fn fetched(&mut self, name: &str, held: Held) {
        if let Some(object) = self.by_name.get_mut(name) {
            object.held = Some(held);
            object.failures = 0;
            object.problem = None;
            if !object.is_current() {
                object.due = Some(Instant::now() + timeouts::BACKOFF_FIRST);
            }
        }
    }

    /// Records a failed fetch. `wait` is the delay that the API server asked for.
    pub fn failed(&mut self, name: &str, message: String, wait: Duration) {
        if let Some(object) = self.by_name.get_mut(name) {
            object.failures = object.failures.saturating_add(1);
            object.problem = Some(message);
            object.due = Some(Instant::now() + wait + backoff(object.failures));
        }
    }

    /// Returns the uids of the objects on disk that are still needed.
    pub fn held(&self) -> BTreeSet<String> {
        let held = self.by_name.values().filter_map(|one| one.held.as_ref());
        held.map(|held| held.meta.uid.clone()).collect()
    }

    /// Returns all objects by age, the oldest first, then by uid.
    fn by_age(&self) -> Vec<(&String, &Object)> {
        let mut objects: Vec<_> = self.by_name.iter().collect();
        objects.sort_by_key(|(_, object)| (&object.meta.created, &object.meta.uid));
        objects
    }

    /// Returns the objects that are read: first those on disk, then the oldest.
    fn used(&self) -> impl Iterator<Item = (&String, &Object)> {
        let mut objects = self.by_age();
        objects.sort_by_key(|(_, object)| object.held.is_none());
        objects.into_iter().take(MOST)
    }

    /// Returns true once the watch has failed, or once the objects were listed and each was read or has failed.
    pub fn is_settled(&self) -> bool {
        let is_tried = |object: &Object| object.held.is_some() || object.problem.is_some();
        self.failure.is_some() || (self.listed && self.used().all(|(_, object)| is_tried(object)))
    }

    /// Returns the sources. If several objects contain the same file, the oldest object's counts.
    pub fn sources(&self) -> SourceSet {
        let mut set = SourceSet {
            complete: true,
            partial: !self.listed || self.used().any(|(_, object)| object.held.is_none()),
            ..SourceSet::default()
        };
        if let Some(failure) = &self.failure {
            let source = format!("ConfigMaps of namespace {}", self.namespace);
            set.problems.push(SourceProblem::new(
                source,
                format!("{failure}; the handlers stay as they are"),
            ));
        }
        let mut owners: BTreeMap<&str, String> = BTreeMap::new();
        let used: BTreeSet<&String> = self.used().map(|(name, _)| name).collect();
        for (name, object) in self.by_age() {
            let source = format!("ConfigMap {}/{name}", self.namespace);
            let identity = ObjectName {
                namespace: self.namespace.clone(),
                name: name.clone(),
                uid: object.meta.uid.clone(),
            };
            set.objects.insert(source.clone(), identity.clone());
            let mut add_problem = |key: &str, message: String| {
                set.problems.push(SourceProblem {
                    path: key.to_owned(),
                    ..SourceProblem::new(&source, message)
                });
            };
            if !used.contains(name) {
                let message = format!(
                    "is not read: {MOST} ConfigMaps with handlers, the maximum, were there before or are older; remove those that you do not want"
                );
                add_problem("", message);
                continue;
            }
            if let Some(problem) = &object.problem {
                let message =
                    format!("{problem}; retrying; a version that was accepted before stays in use");
                add_problem("", message);
            }
            let Some(held) = &object.held else {
                continue;
            };
            for (key, message) in &held.contents.problems {
                add_problem(key, message.clone());
            }
            for (key, (text, orphaned)) in &held.contents.grants {
                let orphaned = orphaned.as_ref().map(|message| SourceProblem {
                    path: key.clone(),
                    ..SourceProblem::new(&source, message)
                });
                let text = Arc::clone(text);
                set.grants
                    .entry(key.clone())
                    .or_insert(GrantsFile { text, orphaned });
            }
            for (file, component) in &held.contents.files {
                if let Some(owner) = owners.get(file.as_str()) {
                    let message = format!(
                        "is not used: {owner} is older and has the same handler file; remove one of them"
                    );
                    add_problem(&component.key, message);
                    continue;
                }
                owners.insert(file, source.clone());
                set.objects.insert(file.clone(), identity.clone());
                set.files.insert(file.clone(), component.version.clone());
            }
        }
        set.problems.sort();
        set
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::ByteString;
    use leafhost_core::ports::SourceVersion;

    use super::super::contents::digest;
    use super::*;

    /// Creates an object with this age, uid and version, and one component per key.
    fn mk_map(
        name: &str,
        second: i64,
        uid: &str,
        version: &str,
        files: &[(&str, &str)],
    ) -> ConfigMap {
        let files = files
            .iter()
            .map(|(key, bytes)| ((*key).into(), ByteString(bytes.as_bytes().into())));
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(name.into()),
                namespace: Some("leafhost".into()),
                uid: Some(uid.into()),
                resource_version: Some(version.into()),
                creation_timestamp: Some(Time(jiff::Timestamp::from_second(second).unwrap())),
                ..ObjectMeta::default()
            },
            binary_data: Some(files.collect()),
            ..ConfigMap::default()
        }
    }

    fn mk_objects() -> Objects {
        Objects::new("leafhost", std::iter::empty())
    }

    fn list(objects: &mut Objects, maps: &[&ConfigMap]) {
        objects.list();
        for map in maps {
            objects.list_one(&map.metadata);
        }
        objects.list_end(Instant::now);
    }

    /// Fetches the objects that are due.
    fn fetch(objects: &mut Objects, maps: &[&ConfigMap]) -> Vec<String> {
        let due = objects.take_due(Instant::now(), 10);
        for name in &due {
            let map = maps
                .iter()
                .find(|map| map.metadata.name.as_ref() == Some(name));
            objects.fetched(name, Held::of(map.unwrap()));
        }
        due
    }

    fn version(bytes: &str) -> SourceVersion {
        SourceVersion {
            digest: digest(bytes.as_bytes()),
            grants: None,
        }
    }

    #[test]
    fn what_is_on_disk_serves_before_the_list_and_is_not_fetched_after_it() {
        let map = mk_map("a", 1, "u1", "7", &[("a.wasm", "1")]);
        let foreign = ConfigMap {
            metadata: ObjectMeta {
                namespace: Some("other".into()),
                ..map.metadata.clone()
            },
            ..map.clone()
        };
        let mut objects = Objects::new("leafhost", [map.clone(), foreign].into_iter());
        assert!(!objects.is_settled());
        let set = objects.sources();
        assert_eq!(
            set.files,
            BTreeMap::from([("a.wasm".into(), Some(version("1")))])
        );
        assert!(set.partial, "an absent file says nothing");
        list(&mut objects, &[&map]);
        assert!(objects.is_settled());
        assert!(!objects.sources().partial);
        assert_eq!(
            (objects.next(), objects.held()),
            (None, BTreeSet::from(["u1".into()]))
        );
    }

    #[test]
    fn a_change_is_fetched_once_and_what_was_there_serves_until_then() {
        let old = mk_map("a", 1, "u1", "7", &[("a.wasm", "1")]);
        let new = mk_map("a", 1, "u1", "9", &[("a.wasm", "2")]);
        let mut objects = mk_objects();
        list(&mut objects, &[&old]);
        assert!(!objects.is_settled());
        assert_eq!(fetch(&mut objects, &[&old]), ["a"]);
        objects.changed(&mk_map("a", 1, "u1", "8", &[]).metadata, Instant::now);
        objects.changed(&new.metadata, Instant::now);
        assert_eq!(objects.sources().files["a.wasm"], Some(version("1")));
        assert_eq!(fetch(&mut objects, &[&new]), ["a"]);
        assert_eq!(objects.sources().files["a.wasm"], Some(version("2")));
        // The event of an object that was fetched already comes later.
        objects.changed(&mk_map("a", 1, "u1", "8", &[]).metadata, Instant::now);
        objects.changed(&new.metadata, Instant::now);
        assert_eq!(objects.next(), None);
    }

    #[test]
    fn grants_of_no_component_are_told_and_there_for_an_external_handler_from_the_oldest_object() {
        let text = |text: &str| Some([("a.grants.yaml".into(), text.into())].into());
        let old = ConfigMap {
            data: text("old"),
            binary_data: None,
            ..mk_map("b", 1, "u1", "7", &[])
        };
        let new = ConfigMap {
            data: text("new"),
            ..mk_map("a", 2, "u2", "8", &[("a.wasm", "1")])
        };
        let mut objects = mk_objects();
        list(&mut objects, &[&old, &new]);
        fetch(&mut objects, &[&old, &new]);
        let set = objects.sources();
        let grants = &set.grants["a.grants.yaml"];
        assert_eq!(&*grants.text, "old");
        assert_eq!(set.problems, Vec::from_iter(grants.orphaned.clone()));
        assert!(set.problems[0].message.contains("grants of no component"));
        let own = set.files["a.wasm"].clone().unwrap().grants;
        assert_eq!(own.as_deref(), Some("new"));
    }

    #[test]
    fn an_object_that_is_gone_emptied_or_made_again_takes_its_handlers_with_it() {
        let map = mk_map("a", 1, "u1", "7", &[("a.wasm", "1")]);
        let emptied = mk_map("a", 1, "u1", "8", &[]);
        let again = mk_map("a", 2, "u2", "9", &[("b.wasm", "1")]);
        let mut objects = mk_objects();
        list(&mut objects, &[&map]);
        fetch(&mut objects, &[&map]);
        objects.changed(&emptied.metadata, Instant::now);
        fetch(&mut objects, &[&emptied]);
        let set = objects.sources();
        assert!(set.files.is_empty() && !set.partial, "{set:?}");
        assert_eq!(
            set.problems[0].to_string(),
            "ConfigMap leafhost/a: has no handler; add one, or remove the ConfigMap"
        );
        objects.gone(&emptied.metadata);
        assert_eq!(
            objects.sources(),
            SourceSet {
                complete: true,
                ..SourceSet::default()
            }
        );
        list(&mut objects, &[&again]);
        assert!(objects.sources().partial, "nobody knows yet what it has");
        fetch(&mut objects, &[&again]);
        assert_eq!(
            objects.sources().files,
            BTreeMap::from([("b.wasm".into(), Some(version("1")))])
        );
        list(&mut objects, &[]);
        assert!(objects.sources().files.is_empty() && objects.held().is_empty());
    }

    #[test]
    fn of_one_file_name_the_oldest_object_counts_then_the_lowest_uid() {
        let files = |bytes: &'static str| [("a.wasm", bytes)];
        let old = mk_map("z", 1, "u9", "1", &files("old"));
        let twin = mk_map("y", 1, "u8", "2", &files("twin"));
        let young = mk_map("b", 2, "u1", "3", &files("young"));
        let mut objects = mk_objects();
        let all = [&old, &twin, &young];
        list(&mut objects, &all);
        fetch(&mut objects, &all);
        let set = objects.sources();
        assert_eq!(
            set.files,
            BTreeMap::from([("a.wasm".into(), Some(version("twin")))])
        );
        let add_problem: Vec<_> = set.problems.iter().map(ToString::to_string).collect();
        let message = "a.wasm: is not used: ConfigMap leafhost/y is older and has the same handler file; remove one of them";
        assert_eq!(
            add_problem,
            ["b", "z"].map(|name| format!("ConfigMap leafhost/{name}: {message}"))
        );
        objects.gone(&twin.metadata);
        assert_eq!(objects.sources().files["a.wasm"], Some(version("old")));
    }

    #[test]
    fn nothing_is_gone_when_the_objects_can_no_longer_be_listed() {
        let map = mk_map("a", 1, "u1", "7", &[("a.wasm", "1")]);
        let mut objects = mk_objects();
        list(&mut objects, &[&map]);
        fetch(&mut objects, &[&map]);
        let before = objects.sources();
        objects.failure = Some("cannot be read: forbidden".into());
        objects.list();
        let set = objects.sources();
        assert_eq!((set.files, set.partial), (before.files, false));
        assert_eq!(
            set.problems[0].to_string(),
            "ConfigMaps of namespace leafhost: cannot be read: forbidden; the handlers stay as they are"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_fetch_that_fails_is_tried_again_later_and_later_but_not_before_the_api_server_allows()
     {
        let map = mk_map("a", 1, "u1", "7", &[]);
        let mut objects = mk_objects();
        list(&mut objects, &[&map]);
        for (wait, seconds) in [(0, 1.0), (0, 2.0), (30, 34.0), (0, 8.0)] {
            let started = Instant::now();
            assert_eq!(objects.take_due(started, 10), ["a"]);
            assert_eq!(objects.next(), None);
            objects.failed("a", "too many requests".into(), Duration::from_secs(wait));
            let next = objects.next().unwrap();
            let waited = (next - started).as_secs_f64();
            assert!((seconds * 0.75..=seconds).contains(&waited), "{waited}");
            tokio::time::advance(next - started).await;
        }
        let set = objects.sources();
        assert!(set.partial && objects.is_settled());
        assert!(
            set.problems[0]
                .to_string()
                .contains("ConfigMap leafhost/a: too many requests")
        );
        objects.changed(&map.metadata, Instant::now);
        assert_eq!(fetch(&mut objects, &[&map]), ["a"]);
        assert!(!objects.sources().partial);
    }

    #[test]
    fn of_too_many_objects_the_oldest_are_used_and_the_others_named() {
        let maps: Vec<_> = (0..=MOST)
            .map(|n| mk_map(&format!("m{n}"), i64::try_from(n).unwrap(), "u", "1", &[]))
            .collect();
        let mut objects = mk_objects();
        list(&mut objects, &maps.iter().collect::<Vec<_>>());
        let due = objects.take_due(Instant::now(), 1000);
        assert_eq!((due.len(), objects.next()), (MOST, None));
        for map in &maps[..MOST] {
            objects.fetched(map.metadata.name.as_deref().unwrap(), Held::of(map));
        }
        let set = objects.sources();
        assert!(!set.partial);
        let named = set
            .problems
            .iter()
            .find(|one| one.message.contains("is not read"))
            .unwrap();
        assert_eq!(named.source, format!("ConfigMap leafhost/m{MOST}"));
        // An object that gets the label later displaces no other, however old it is.
        let older = mk_map("older", -1, "u", "1", &[]);
        objects.changed(&older.metadata, Instant::now);
        assert_eq!(objects.next(), None);
        let set = objects.sources();
        let mut named = set.problems.iter().map(|one| one.source.as_str());
        assert!(named.any(|one| one == "ConfigMap leafhost/older"));
    }
}
