use leafhost_core::ports::SourceLocation;
use tempfile::TempDir;

use super::*;

fn digest(text: &str) -> Digest {
    regular::digest_of(text.as_bytes())
}

/// Builds the version of a file of these bytes, and the file.
fn mk_version(name: &str, text: &str, number: u64) -> (AcceptedVersion, SourceFile) {
    let grants: Option<std::sync::Arc<str>> = Some("udev: {}".into());
    let version = SourceVersion {
        digest: digest(text),
        grants: grants.clone(),
    };
    let accepted = AcceptedVersion {
        version,
        registration: Registration {
            handler: "udev".to_owned(),
            number,
        },
    };
    let file = SourceFile {
        name: name.to_owned(),
        bytes: text.as_bytes().into(),
        grants,
    };
    (accepted, file)
}

/// Accepts files of these names and bytes, and no others.
fn accept(store: &FileLoaderStore, files: &[(&str, &str)]) -> Result<(), String> {
    let versions = files.iter().zip(0..).map(|((name, text), number)| {
        let (accepted, file) = mk_version(name, text, number);
        (((*name).to_owned(), accepted), ((*name).to_owned(), file))
    });
    let (accepted, files) = versions.unzip();
    let result = store.set_accepted(&accepted, &files);
    result.map_err(|problem| problem.to_string())
}

async fn open(folder: &TempDir) -> FileLoaderStore {
    let path = folder.path();
    let store = FileLoaderStore::open(path.join("kept"), path.to_owned());
    store.await.unwrap()
}

/// Returns the names of the files that hold bytes.
fn blobs(folder: &TempDir) -> Vec<String> {
    atomic::open(&folder.path().join("kept/bytes")).unwrap()
}

#[tokio::test]
async fn accepted_versions_are_there_after_a_restart_and_others_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    accept(&store, &[("a", "same"), ("b", "same"), ("c", "old")]).unwrap();
    assert_eq!(blobs(&folder).len(), 2);
    accept(&store, &[("a", "same"), ("c", "new")]).unwrap();
    let mut expected = [digest("new").0, digest("same").0];
    expected.sort();
    assert_eq!(blobs(&folder), expected);

    let store = open(&folder).await;
    let (a, file) = mk_version("a", "same", 0);
    let (c, _) = mk_version("c", "new", 1);
    assert_eq!(store.read("a", &a.version), Some(file));
    let gone = mk_version("c", "old", 1).0.version;
    assert_eq!(store.read("c", &gone), None);
    let expected = [("a".to_owned(), a), ("c".to_owned(), c)];
    assert_eq!(store.accepted(), BTreeMap::from(expected));
}

#[tokio::test]
async fn bytes_that_are_there_are_not_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    let written = || {
        let blob = folder.path().join("kept/bytes").join(digest("text").0);
        fs::metadata(blob).unwrap().modified().unwrap()
    };
    accept(&store, &[("a", "text")]).unwrap();
    let before = written();
    accept(&store, &[("a", "text"), ("b", "text")]).unwrap();
    assert_eq!(written(), before);
}

#[tokio::test]
async fn a_version_that_cannot_be_written_is_reported_and_stops_no_other() {
    let folder = tempfile::tempdir().unwrap();
    let store = open(&folder).await;
    accept(&store, &[("b", "old"), ("gone", "gone")]).unwrap();
    let blob = folder.path().join("kept/bytes").join(digest("first").0);
    fs::create_dir_all(&blob).unwrap();
    let files = [("a", "first"), ("b", "second")];
    let problem = accept(&store, &files).unwrap_err();
    assert!(
        problem.contains("cannot store the accepted handlers") && problem.contains("--state-dir"),
        "{problem}"
    );
    let names: Vec<_> = open(&folder).await.accepted().into_keys().collect();
    assert_eq!(names, ["b"]);
    fs::remove_dir(&blob).unwrap();
    accept(&store, &files).unwrap();
    assert_eq!(open(&folder).await.accepted().len(), 2);
    assert_eq!(blobs(&folder).len(), 2);
}

#[tokio::test]
async fn what_is_damaged_is_ignored_and_written_again_when_it_is_accepted() {
    let folder = tempfile::tempdir().unwrap();
    let (store, path) = (open(&folder).await, folder.path());
    let blob = path.join("kept/bytes").join(digest("good").0);
    for of_bytes in [true, false] {
        accept(&store, &[("a", "good")]).unwrap();
        assert_eq!(open(&folder).await.accepted().len(), 1);
        if of_bytes {
            fs::write(&blob, "goo").unwrap();
        } else {
            fs::write(path.join("kept/a.yaml"), "digest: 1").unwrap();
        }
        assert_eq!(open(&folder).await.accepted(), BTreeMap::new());
    }
}

#[tokio::test]
async fn the_owners_of_names_are_there_after_a_restart_and_a_damaged_file_names_none() {
    let folder = tempfile::tempdir().unwrap();
    let owner = |source: &str, location| Owner {
        source: source.to_owned(),
        location,
    };
    let of_object = SourceLocation::ConfigMap {
        namespace: "leafhost".to_owned(),
        name: "onvif".to_owned(),
    };
    let owners = BTreeMap::from([
        ("onvif".to_owned(), owner("onvif.wasm", of_object)),
        (
            "udev".to_owned(),
            owner("udev.wasm", SourceLocation::Folder),
        ),
    ]);
    open(&folder).await.set_owners(&owners).unwrap();
    assert_eq!(open(&folder).await.owners(), owners);
    fs::write(folder.path().join("owners.yaml"), "- 7").unwrap();
    let store = open(&folder).await;
    assert_eq!(store.owners(), BTreeMap::new());
    store.set_owners(&owners).unwrap();
    assert_eq!(store.owners(), owners);
}
