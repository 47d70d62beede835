use std::fs;
use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::regular;

fn bytes(text: &str) -> Content {
    Content::Bytes(text.as_bytes().into())
}

fn mk_snapshot(files: &[(&str, Content)]) -> Arc<Snapshot> {
    Arc::new(Snapshot {
        complete: true,
        exists: true,
        files: files
            .iter()
            .map(|(name, content)| ((*name).to_owned(), content.clone()))
            .collect(),
        ..Snapshot::default()
    })
}

fn mk_source(name: &str, text: &str, grants: Option<&str>) -> SourceFile {
    SourceFile {
        name: name.to_owned(),
        bytes: text.as_bytes().into(),
        grants: grants.map(Into::into),
    }
}

/// The version that is in a file of these bytes.
fn mk_version(text: &str, grants: Option<&str>) -> SourceVersion {
    SourceVersion {
        digest: regular::digest_of(text.as_bytes()),
        grants: grants.map(Into::into),
    }
}

fn component(text: &str) -> Content {
    Content::Digest(regular::digest_of(text.as_bytes()))
}

fn mk_folders(files: &[(&str, Content)]) -> Vec<(PathBuf, Arc<Snapshot>)> {
    vec![("DIR".into(), mk_snapshot(files))]
}

#[test]
fn a_component_has_the_grants_beside_it_and_the_first_folder_counts() {
    let folders = [
        (
            "one".into(),
            mk_snapshot(&[("a.wasm", component("1")), ("a.grants.yaml", bytes("g"))]),
        ),
        (
            "two".into(),
            mk_snapshot(&[
                ("a.wasm", component("2")),
                ("b.wasm.gz", component("b")),
                ("c.grants.yaml", bytes("g")),
            ]),
        ),
        (
            "three".into(),
            Arc::new(Snapshot {
                complete: true,
                ..Snapshot::default()
            }),
        ),
    ];
    let set = assemble(&folders, &BTreeMap::new());
    let expected = [
        ("a.wasm".to_owned(), mk_version("1", Some("g"))),
        ("b.wasm.gz".to_owned(), mk_version("b", None)),
    ];
    assert_eq!(set.files, BTreeMap::from(expected));
    let problems: Vec<_> = set.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 3, "{problems:?}");
    assert!(problems[0].starts_with("three: is missing"));
    assert!(problems[1].contains("two/a.wasm: is not used: one/a.wasm"));
    assert!(problems[2].contains("orphaned grants file: no c.wasm next to it"));
}

#[test]
fn a_missing_folder_says_nothing_of_its_files_and_an_empty_one_that_there_are_none() {
    let earlier = BTreeMap::from([("a.wasm".to_owned(), mk_version("1", None))]);
    let missing = [(
        "DIR".into(),
        Arc::new(Snapshot {
            complete: true,
            ..Snapshot::default()
        }),
    )];
    let set = assemble(&missing, &earlier);
    assert_eq!(set.files, earlier);
    assert!(set.problems[0].to_string().contains("keep serving"));
    assert!(assemble(&mk_folders(&[]), &earlier).files.is_empty());
}

#[test]
fn what_cannot_be_read_serves_as_it_was_and_never_with_other_grants() {
    let earlier = mk_version("old", Some("old grants"));
    let refused = Content::Refused("is a link".into());
    for (files, at) in [
        (
            vec![("a.wasm", refused.clone()), ("a.grants.yaml", bytes("g"))],
            Some("DIR/a.wasm"),
        ),
        (
            vec![("a.wasm", component("new")), ("a.grants.yaml", refused)],
            Some("DIR/a.grants.yaml"),
        ),
        (
            vec![
                ("a.wasm", component("new")),
                ("a.grants.yaml", Content::Bytes(b"\xff".as_slice().into())),
            ],
            Some("DIR/a.grants.yaml"),
        ),
        (vec![("a.wasm", Content::Pending)], None),
        (
            vec![
                ("a.wasm", component("new")),
                ("a.grants.yaml", Content::Pending),
            ],
            None,
        ),
    ] {
        let folders = mk_folders(&files);
        let set = assemble(
            &folders,
            &BTreeMap::from([("a.wasm".to_owned(), earlier.clone())]),
        );
        assert_eq!(set.files.get("a.wasm"), Some(&earlier));
        assert_eq!(
            set.problems.first().map(|problem| problem.source.as_str()),
            at
        );
        assert!(
            set.problems
                .iter()
                .all(|problem| problem.message.contains("keeps serving"))
        );
        let set = assemble(&folders, &BTreeMap::new());
        assert!(set.files.is_empty());
        assert!(
            set.problems
                .iter()
                .all(|problem| !problem.message.contains("keeps serving"))
        );
    }
}

struct Home {
    folder: TempDir,
    source: FileHandlers,
}

impl Home {
    async fn open(folder: TempDir) -> Self {
        let path = folder.path();
        let handlers = vec![path.join("handlers")];
        let source = FileHandlers::open(handlers, path.join("kept"), path.to_owned());
        let source = source.await.unwrap();
        Self { folder, source }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn until(&self, wanted: impl Fn(&SourceSet) -> bool) -> Arc<SourceSet> {
        let mut sets = self.source.handlers();
        let wait = sets.wait_for(|set| wanted(set));
        let set = tokio::time::timeout(Duration::from_secs(20), wait).await;
        Arc::clone(&set.expect("in time").unwrap())
    }

    async fn until_kept(&self, versions: usize, blobs: usize) {
        let count = |name: &str, end: &str| {
            let entries = fs::read_dir(self.path(name)).into_iter().flatten();
            entries
                .filter(|entry| {
                    entry
                        .as_ref()
                        .unwrap()
                        .file_name()
                        .to_string_lossy()
                        .ends_with(end)
                })
                .count()
        };
        let wait = async {
            while (count("kept", ".yaml"), count("kept/bytes", "")) != (versions, blobs) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(20), wait)
                .await
                .is_ok()
        );
    }
}

#[tokio::test(start_paused = true)]
async fn the_accepted_version_is_kept_over_a_restart_until_the_file_is_gone() {
    let home = Home::open(tempfile::tempdir().unwrap()).await;
    fs::create_dir(home.path("handlers")).unwrap();
    fs::write(home.path("handlers/a.grants.yaml"), "g").unwrap();
    fs::write(home.path("handlers/a.wasm"), "good").unwrap();
    let good = mk_source("a.wasm", "good", Some("g"));
    let set = home
        .until(|set| set.files.get("a.wasm") == Some(&mk_version("good", Some("g"))))
        .await;
    assert_eq!(set.problems, []);
    home.source.accept(&good, "udev");
    home.source.accept(&good, "udev");
    let version = mk_version("good", Some("g"));
    assert_eq!(home.source.accepted("a.wasm"), Some(version.clone()));
    home.until_kept(1, 1).await;
    // Garbage is a change like any other, and no reason to forget.
    fs::write(home.path("handlers/a.wasm"), "garbage").unwrap();
    let garbage = mk_version("garbage", Some("g"));
    home.until(|set| set.files.get("a.wasm") == Some(&garbage))
        .await;

    let Home { folder, source } = home;
    drop(source);
    let home = Home::open(folder).await;
    assert_eq!(home.source.accepted("a.wasm"), Some(version.clone()));
    assert_eq!(home.source.read("a.wasm", &version), Ok(good));
    let other = mk_source("a.wasm", "other", None);
    home.source.accept(&other, "udev");
    home.until(|set| set.complete).await;
    home.until_kept(1, 1).await;

    fs::remove_file(home.path("handlers/a.wasm")).unwrap();
    home.until(|set| set.files.is_empty()).await;
    home.until_kept(0, 0).await;
    assert_eq!(home.source.accepted("a.wasm"), None);
    let error = home.source.read("a.wasm", &version).unwrap_err();
    assert!(error.transient, "{error}");
    let reported = format!(
        "cannot load a.wasm: {} is missing; it is tried again, and a file that is put there is loaded",
        home.path("handlers/a.wasm").display()
    );
    assert_eq!(error.to_string(), reported);
}

#[test]
fn a_file_in_the_place_of_the_folder_is_reported() {
    let nothing = Arc::new(Snapshot {
        complete: true,
        obstructed: Some("is not a folder"),
        ..Snapshot::default()
    });
    let version = ("a.wasm".to_owned(), mk_version("a", None));
    for (earlier, words) in [
        (BTreeMap::new(), "move away what is there, make it and put"),
        ([version].into(), "accepted keep serving"),
    ] {
        let set = assemble(&[("DIR".into(), Arc::clone(&nothing))], &earlier);
        let problem = set.problems[0].to_string();
        assert!(
            problem.starts_with("DIR: is not a folder") && problem.contains(words),
            "{problem}"
        );
        assert_eq!(set.files, earlier);
    }
}
