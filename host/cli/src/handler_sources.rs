//! Joins several sources of handlers; a file of an earlier source replaces a file of the same name in later ones.
//!
//! An operator can thus replace a handler of the image with one in a ConfigMap. The replaced file is not reported: replacing
//! files is the purpose of the order, and the status shows the version and digest of the handler that serves. A grants file
//! without a component replaces that of a later source's component.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;

use futures::future::select_all;
use leafhost_core::grants_file;
use leafhost_core::ports::{
    HandlerSource, LoadError, SourceFile, SourceProblem, SourceSet, SourceVersion,
};
use leafhost_core::tasks::Tasks;
use leafhost_core::wait;
use leafhost_files::FileHandlers;
use leafhost_k8s::KubeHandlers;
use tokio::sync::watch;

/// Handler sources in order of precedence.
pub struct HandlerSources {
    sources: Vec<Arc<dyn HandlerSource>>,
    set: watch::Receiver<Arc<SourceSet>>,
}

impl HandlerSources {
    /// Joins the ConfigMaps of a cluster, which come first, and folders, without the files that `without` names.
    pub fn open(
        maps: Option<KubeHandlers>,
        folders: Vec<PathBuf>,
        without: &[String],
        tasks: &mut Tasks,
    ) -> Self {
        let maps = maps.map(|maps| Arc::new(maps) as Arc<dyn HandlerSource>);
        let mut sources: Vec<_> = maps.into_iter().collect();
        for folder in folders {
            sources.push(Arc::new(FileHandlers::open(folder, tasks)));
        }
        Self::join(sources, without, tasks)
    }

    fn join(sources: Vec<Arc<dyn HandlerSource>>, without: &[String], tasks: &mut Tasks) -> Self {
        let sets = sources.iter().map(|source| source.handlers()).collect();
        let (sender, set) = watch::channel(Arc::default());
        let without = without.iter().map(|name| plain(name).to_owned());
        let following = follow(sets, without.collect(), sender);
        tasks.add_loop("sources of handlers", following);
        Self { sources, set }
    }
}

impl HandlerSource for HandlerSources {
    fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
        self.set.clone()
    }

    fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError> {
        for source in &self.sources {
            let set = Arc::clone(&source.handlers().borrow());
            let mut files = set.files.iter();
            // The grants may come from another source.
            let found = files.find_map(|(file, found)| {
                let found = found.as_ref()?;
                (plain(file) == name && found.digest == version.digest).then_some((file, found))
            });
            if let Some((file, found)) = found {
                let file = source.read(file, found)?;
                return Ok(SourceFile {
                    name: name.to_owned(),
                    grants: version.grants.clone(),
                    ..file
                });
            }
        }
        let why = "the file has changed since it was found; retrying";
        Err(LoadError::new(name, why, true))
    }
}

async fn follow(
    mut sets: Vec<watch::Receiver<Arc<SourceSet>>>,
    without: BTreeSet<String>,
    sender: watch::Sender<Arc<SourceSet>>,
) {
    let mut places = BTreeMap::new();
    loop {
        let seen = sets.iter_mut();
        let seen: Vec<_> = seen.map(|set| set.borrow_and_update().clone()).collect();
        let mut joined = join(&seen, &mut places);
        joined.files.retain(|name, _| !without.contains(name));
        wait::publish(&sender, Arc::new(joined));
        let changes = sets.iter_mut().map(|set| Box::pin(set.changed()));
        let (first, ..) = select_all(changes).await;
        if first.is_err() {
            return;
        }
    }
}

/// Returns the name of a file without a `.gz` suffix.
fn plain(file: &str) -> &str {
    file.strip_suffix(".gz").unwrap_or(file)
}

/// Joins all sets. A file that is present but unusable still takes precedence over later sources: its last accepted version
/// continues to serve. `places` has the number of the source in which each file was last seen, so that a missing source
/// keeps only its own files.
fn join(sets: &[Arc<SourceSet>], places: &mut BTreeMap<String, usize>) -> SourceSet {
    let mut joined = SourceSet {
        complete: sets.iter().all(|set| set.complete),
        partial: sets.iter().any(|set| set.partial),
        ..SourceSet::default()
    };
    if !joined.partial {
        places.clear();
    }
    let mut of_others = BTreeSet::new();
    for (number, set) in sets.iter().enumerate() {
        for (file, version) in &set.files {
            if let Entry::Vacant(place) = joined.files.entry(plain(file).to_owned()) {
                places.insert(place.key().clone(), number);
                let mut version = version.clone();
                let earlier = sets.get(..number).unwrap_or_default();
                if let Some(grants) = granted(earlier, place.key(), &mut of_others)
                    && let Some(version) = &mut version
                {
                    version.grants = Some(grants);
                }
                place.insert(version);
                if let Some(object) = set.objects.get(file) {
                    let file = plain(file).to_owned();
                    joined.objects.insert(file, object.clone());
                }
            }
        }
        for (file, grants) in &set.grants {
            let place = joined.grants.entry(file.clone());
            place.or_insert_with(|| grants.clone());
        }
        let is_file = |name: &String| set.files.contains_key(name);
        let whole = set.objects.iter().filter(|(name, _)| !is_file(name));
        let whole = whole.map(|(name, object)| (name.clone(), object.clone()));
        joined.objects.extend(whole);
        joined.problems.extend_from_slice(&set.problems);
        joined.warnings.extend_from_slice(&set.warnings);
    }
    let is_missing = |number: &usize| sets.get(*number).is_some_and(|set| set.partial);
    let gone = places.iter().filter(|(name, number)| {
        joined.partial && !joined.files.contains_key(*name) && !is_missing(number)
    });
    joined.gone = gone.map(|(name, _)| name.clone()).collect();
    joined.problems.retain(|one| !of_others.contains(one));
    joined.problems.sort();
    joined.warnings.sort();
    joined
}

/// Returns the grants for a component from an earlier source that lacks the component. The problem that reports these grants
/// as having no component goes to `problems`.
fn granted(
    earlier: &[Arc<SourceSet>],
    component: &str,
    problems: &mut BTreeSet<SourceProblem>,
) -> Option<Arc<str>> {
    earlier.iter().find_map(|set| {
        let of_none = |name: &str| {
            let grants = set.grants.get(name)?;
            Some((grants, grants.orphaned.as_ref()?))
        };
        let name = grants_file::among(component, |name| of_none(name).is_some());
        let (grants, orphaned) = of_none(&name)?;
        problems.insert(orphaned.clone());
        Some(Arc::clone(&grants.text))
    })
}

#[cfg(test)]
mod tests {
    use leafhost_core::handler::Digest;
    use leafhost_core::node_report::ObjectName;
    use leafhost_core::ports::GrantsFile;

    use super::*;

    struct Source(watch::Receiver<Arc<SourceSet>>);

    impl HandlerSource for Source {
        fn handlers(&self) -> watch::Receiver<Arc<SourceSet>> {
            self.0.clone()
        }

        fn read(&self, name: &str, version: &SourceVersion) -> Result<SourceFile, LoadError> {
            Ok(SourceFile {
                name: name.to_owned(),
                bytes: version.digest.0.as_bytes().into(),
                grants: None,
            })
        }
    }

    fn version(digest: &str) -> SourceVersion {
        SourceVersion {
            digest: Digest(digest.to_owned()),
            grants: None,
        }
    }

    /// Creates a set that was read, with files; a file without a digest cannot be used.
    fn mk_set(files: &[(&str, &str)]) -> SourceSet {
        let files = files.iter().map(|(name, digest)| {
            let found = (!digest.is_empty()).then(|| version(digest));
            ((*name).to_owned(), found)
        });
        SourceSet {
            complete: true,
            files: files.collect(),
            ..SourceSet::default()
        }
    }

    type Sender = watch::Sender<Arc<SourceSet>>;

    fn mk_sources<const N: usize>(sets: [SourceSet; N]) -> (HandlerSources, [Sender; N], Tasks) {
        let mut sources: Vec<Arc<dyn HandlerSource>> = Vec::new();
        let senders = sets.map(|set| {
            let (sender, receiver) = watch::channel(Arc::new(set));
            sources.push(Arc::new(Source(receiver)));
            sender
        });
        let without = ["left-out.wasm".to_owned()];
        let mut tasks = Tasks::default();
        let sources = HandlerSources::join(sources, &without, &mut tasks);
        (sources, senders, tasks)
    }

    #[tokio::test]
    async fn an_earlier_source_wins_and_gives_the_bytes() {
        let maps = mk_set(&[("udev.wasm", "m1"), ("bad.wasm", "")]);
        let image = mk_set(&[
            ("udev.wasm.gz", "i1"),
            ("bad.wasm", "i2"),
            ("opcua.wasm.gz", "i3"),
            ("left-out.wasm.gz", "i4"),
        ]);
        let (sources, [maps, _image], _tasks) = mk_sources([maps, image]);
        let mut set = sources.handlers();
        let first = Arc::clone(&set.wait_for(|set| set.complete).await.unwrap());
        let expected = [
            ("bad.wasm", None),
            ("opcua.wasm", Some(version("i3"))),
            ("udev.wasm", Some(version("m1"))),
        ];
        let expected = expected.map(|(name, version)| (name.to_owned(), version));
        assert_eq!(first.files, BTreeMap::from(expected));
        for (name, digest) in [("udev.wasm", "m1"), ("opcua.wasm", "i3")] {
            let file = sources.read(name, &version(digest)).unwrap();
            assert_eq!(
                (file.name.as_str(), &file.bytes[..]),
                (name, digest.as_bytes())
            );
        }
        assert!(
            sources
                .read("udev.wasm", &version("m0"))
                .unwrap_err()
                .transient
        );
        maps.send_replace(Arc::new(mk_set(&[])));
        set.wait_for(|set| set.files["udev.wasm"] == Some(version("i1")))
            .await
            .unwrap();
        drop(maps);
        while set.changed().await.is_ok() {}
    }

    #[test]
    fn grants_files_are_those_of_all_sources_and_an_earlier_one_wins() {
        let grants = |files: &[(&str, &str)]| {
            let files = files.iter().map(|(name, text)| {
                let file = GrantsFile {
                    text: Arc::from(*text),
                    orphaned: None,
                };
                ((*name).to_owned(), file)
            });
            Arc::new(SourceSet {
                grants: files.collect(),
                ..mk_set(&[])
            })
        };
        let joined = join(
            &[grants(&[("a", "1")]), grants(&[("a", "2"), ("b", "3")])],
            &mut BTreeMap::new(),
        );
        assert_eq!(joined.grants, grants(&[("a", "1"), ("b", "3")]).grants);
    }

    #[tokio::test]
    async fn grants_without_a_component_are_those_of_a_later_sources_component() {
        let of_none = |name: &str| GrantsFile {
            text: Arc::from("theirs"),
            orphaned: Some(SourceProblem::new(name, "grants of no component")),
        };
        let beside = GrantsFile {
            orphaned: None,
            ..of_none("")
        };
        let maps = SourceSet {
            grants: [
                ("opcua.grants.yaml".into(), of_none("opcua")),
                ("by-id.grants.yaml".into(), of_none("by-id")),
                ("other.grants.yaml".into(), of_none("other")),
                ("udev.grants.yaml".into(), beside),
            ]
            .into(),
            problems: ["by-id", "opcua", "other"]
                .map(|name| of_none(name).orphaned.unwrap())
                .into(),
            ..mk_set(&[])
        };
        let image = mk_set(&[
            ("opcua.wasm.gz", "1"),
            ("by_id.wasm", "2"),
            ("udev.wasm", "3"),
        ]);
        let (sources, _senders, _tasks) = mk_sources([maps, image]);
        let mut set = sources.handlers();
        let set = Arc::clone(&set.wait_for(|set| set.complete).await.unwrap());
        let grants = |name: &str| set.files[name].as_ref().unwrap().grants.as_deref();
        assert_eq!(grants("opcua.wasm"), Some("theirs"));
        assert_eq!(grants("by_id.wasm"), Some("theirs"));
        assert_eq!(grants("udev.wasm"), None);
        assert_eq!(set.problems, [of_none("other").orphaned.unwrap()]);
        let version = set.files["opcua.wasm"].clone().unwrap();
        let file = sources.read("opcua.wasm", &version).unwrap();
        assert_eq!((&file.bytes[..], file.grants), (&b"1"[..], version.grants));
    }

    #[test]
    fn the_object_of_a_file_is_that_of_the_source_whose_file_counts() {
        let object = |name: &str| ObjectName {
            name: name.into(),
            ..ObjectName::default()
        };
        let mut first = mk_set(&[("a.wasm.gz", "1")]);
        first.objects = [
            ("a.wasm.gz".to_owned(), object("maps")),
            ("ConfigMap n/maps".to_owned(), object("maps")),
        ]
        .into();
        let mut second = mk_set(&[("a.wasm", "2"), ("b.wasm", "3")]);
        second.objects = [("a.wasm".to_owned(), object("other"))].into();
        let joined = join(&[Arc::new(first), Arc::new(second)], &mut BTreeMap::new());
        let expected = ["ConfigMap n/maps", "a.wasm"].map(|name| (name.to_owned(), object("maps")));
        assert_eq!(joined.objects, expected.into());
    }

    #[test]
    fn of_a_source_that_is_missing_its_own_files_alone_may_still_be_there() {
        let missing = || {
            Arc::new(SourceSet {
                partial: true,
                ..mk_set(&[])
            })
        };
        let maps = Arc::new(mk_set(&[("udev.wasm", "m1"), ("onvif.wasm", "m2")]));
        let folder = Arc::new(mk_set(&[("opcua.wasm.gz", "f1")]));
        let mut places = BTreeMap::new();
        join(&[Arc::clone(&maps), folder], &mut places);
        let fewer = Arc::new(mk_set(&[("onvif.wasm", "m2")]));
        let joined = join(&[Arc::clone(&fewer), missing()], &mut places);
        assert!(joined.partial);
        assert_eq!(joined.gone, BTreeSet::from(["udev.wasm".to_owned()]));
        // If a source is missing from the start, its files of an earlier run are not known.
        let mut places = BTreeMap::new();
        assert!(join(&[maps, missing()], &mut places).gone.is_empty());
        let joined = join(&[fewer, missing()], &mut places);
        assert_eq!(joined.gone, BTreeSet::from(["udev.wasm".to_owned()]));
        let back = join(
            &[Arc::new(mk_set(&[("udev.wasm", "m3")])), missing()],
            &mut places,
        );
        assert_eq!(back.gone, BTreeSet::from(["onvif.wasm".to_owned()]));
    }

    #[test]
    fn a_set_is_complete_when_all_are_and_partial_when_one_is() {
        let problem = |name| SourceProblem::new(name, "x");
        let whole = Arc::new(SourceSet {
            problems: vec![problem("b")],
            ..mk_set(&[])
        });
        let partial = Arc::new(SourceSet {
            partial: true,
            problems: vec![problem("a")],
            ..mk_set(&[])
        });
        let mut none = BTreeMap::new();
        let joined = join(&[Arc::clone(&whole), Arc::clone(&partial)], &mut none);
        assert!(joined.complete && joined.partial);
        assert_eq!(joined.problems, [problem("a"), problem("b")]);
        let joined = join(&[whole, Arc::default()], &mut none);
        assert!(!joined.complete && !joined.partial);
    }
}
