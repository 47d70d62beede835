use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use super::*;
use crate::regular;

fn bytes(text: &str) -> Content {
    Content::Bytes(text.as_bytes().into())
}

fn mk_set(files: &[(&str, Content)]) -> SourceSet {
    let snapshot = Snapshot {
        complete: true,
        exists: true,
        files: files
            .iter()
            .map(|(name, content)| ((*name).to_owned(), content.clone()))
            .collect(),
        ..Snapshot::default()
    };
    assemble(Path::new("DIR"), &snapshot)
}

/// Builds the version of a file of these bytes.
fn mk_version(text: &str, grants: Option<&str>) -> SourceVersion {
    SourceVersion {
        digest: regular::digest_of(text.as_bytes()),
        grants: grants.map(Into::into),
    }
}

fn component(text: &str) -> Content {
    Content::Digest(regular::digest_of(text.as_bytes()))
}

#[test]
fn a_component_has_the_grants_beside_it() {
    let set = mk_set(&[
        ("a.wasm", component("1")),
        ("a.grants.yaml", bytes("g")),
        ("b.wasm.gz", component("b")),
        ("c.grants.yaml", bytes("g")),
    ]);
    let expected = [
        ("a.wasm".to_owned(), Some(mk_version("1", Some("g")))),
        ("b.wasm.gz".to_owned(), Some(mk_version("b", None))),
    ];
    assert_eq!(set.files, BTreeMap::from(expected));
    let problems: Vec<_> = set.problems.iter().map(ToString::to_string).collect();
    assert_eq!(problems.len(), 1, "{problems:?}");
    assert!(problems[0].contains("orphaned grants file: no c.wasm next to it"));
    let grants = set.grants.iter().map(|(name, file)| {
        let orphaned = file.orphaned.as_ref().map(ToString::to_string);
        (name.as_str(), &*file.text, orphaned)
    });
    let orphaned = Some(problems[0].clone());
    let expected = [
        ("a.grants.yaml", "g", None),
        ("c.grants.yaml", "g", orphaned),
    ];
    assert_eq!(
        grants.collect::<Vec<_>>(),
        expected,
        "an external handler may be c"
    );
}

#[test]
fn a_missing_folder_says_nothing_of_its_files_and_an_empty_one_that_there_are_none() {
    for (exists, words) in [
        (true, ""),
        (
            false,
            "DIR: is missing, or is not a folder; create it and put",
        ),
    ] {
        let snapshot = Snapshot {
            complete: true,
            exists,
            ..Snapshot::default()
        };
        let set = assemble(Path::new("DIR"), &snapshot);
        assert!(set.complete && set.partial != exists && set.files.is_empty());
        let problems = set.problems.first().map(ToString::to_string);
        assert!(problems.unwrap_or_default().starts_with(words));
    }
}

#[test]
fn what_cannot_be_used_has_no_version_and_never_other_grants() {
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
        let set = mk_set(&files);
        assert_eq!(set.files.get("a.wasm"), Some(&None));
        assert_eq!(
            set.problems.first().map(|problem| problem.source.as_str()),
            at
        );
    }
}

#[test]
fn a_component_as_cargo_names_it_has_the_grants_of_its_crate() {
    let set = mk_set(&[
        ("serial_by_id.wasm", component("1")),
        ("serial-by-id.grants.yaml", bytes("g")),
        ("other-one.grants.yaml", bytes("o")),
    ]);
    let version = mk_version("1", Some("g"));
    assert_eq!(set.files.get("serial_by_id.wasm"), Some(&Some(version)));
    let orphans: Vec<_> = set.problems.iter().map(|found| &found.source).collect();
    assert_eq!(orphans, ["DIR/other-one.grants.yaml"]);
}

#[tokio::test(start_paused = true)]
async fn a_file_is_listed_once_it_has_settled_and_read_as_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.wasm");
    fs::write(folder.path().join("a.grants.yaml"), "g").unwrap();
    fs::write(&path, "good").unwrap();
    let mut tasks = Tasks::default();
    let source = FileHandlers::open(folder.path().to_owned(), &mut tasks);
    let (mut sets, version) = (source.handlers(), mk_version("good", Some("g")));
    let listed = Some(&Some(version.clone()));
    let wait = sets.wait_for(|set| set.files.get("a.wasm") == listed);
    let wait = tokio::time::timeout(Duration::from_secs(20), wait);
    assert_eq!(wait.await.unwrap().unwrap().problems, []);
    let read = source.read("a.wasm", &version).unwrap();
    assert_eq!(
        (&*read.bytes, read.grants),
        (b"good".as_slice(), Some("g".into()))
    );
    for (change, why) in [(Some("other"), "is being replaced"), (None, "is missing")] {
        match change {
            Some(text) => fs::write(&path, text).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
        let error = source.read("a.wasm", &version).unwrap_err();
        let expected = format!(
            "cannot load a.wasm: {} {why}; retrying; a file that is put there is loaded",
            path.display()
        );
        assert!(error.transient && error.to_string() == expected, "{error}");
    }
}
