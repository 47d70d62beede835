use super::*;
use crate::spec::{ContainerEdits, Device};

type Break = fn(&mut Spec);

fn mk_spec(class: &str, devices: &[&str]) -> Spec {
    Spec {
        kind: format!("akri.sh/{class}"),
        devices: devices
            .iter()
            .map(|name| Device {
                name: (*name).to_owned(),
                container_edits: ContainerEdits {
                    env: vec![format!("ID={name}")],
                    ..ContainerEdits::default()
                },
            })
            .collect(),
        container_edits: ContainerEdits::default(),
    }
}

fn mk_dir_for(folder: &tempfile::TempDir, readers: Readers) -> SpecDir {
    SpecDir::new(folder.path().join("cdi"), "akri.sh", "leafhost", readers).unwrap()
}

/// Returns the specs in the folder by class.
fn specs(directory: &SpecDir) -> std::collections::BTreeMap<String, Spec> {
    let classes = directory.classes().unwrap().into_iter();
    classes
        .filter_map(|class| Some((class.clone(), directory.read(&class).unwrap()?)))
        .collect()
}

fn mk_dir() -> (tempfile::TempDir, SpecDir) {
    let folder = tempfile::tempdir().unwrap();
    let directory = mk_dir_for(&folder, Readers::Everybody);
    (folder, directory)
}

#[test]
fn a_spec_is_written_once_read_back_replaced_and_removed() {
    let (_folder, directory) = mk_dir();
    let first = mk_spec("cams", &["a", "b"]);
    assert!(directory.write(&first).unwrap());
    let path = directory.path("cams");
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = inode(&path);
    assert!(!directory.write(&first).unwrap());
    assert_eq!(inode(&path), before, "an unchanged spec causes no write");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o644
    );
    let second = mk_spec("cams", &["a"]);
    assert!(directory.write(&second).unwrap());
    assert_eq!(specs(&directory), [("cams".into(), second)].into());
    assert!(directory.remove("cams").unwrap());
    assert!(!directory.remove("cams").unwrap());
    assert_eq!(fs::read_dir(directory.directory()).unwrap().count(), 0);
}

#[test]
fn a_class_that_is_too_long_for_a_file_name_is_refused_with_the_remedy() {
    let (_folder, directory) = mk_dir();
    let longest = "c".repeat(233);
    let spec = mk_spec(&longest, &["a"]);
    assert!(directory.write(&spec).unwrap());
    assert!(specs(&directory).contains_key(&longest));
    let too_long = "c".repeat(234);
    let error = directory.write(&mk_spec(&too_long, &["a"])).unwrap_err();
    assert!(error.to_string().contains("shorter name"), "{error}");
    assert!(!directory.remove(&too_long).unwrap());
    assert_eq!(directory.read(&too_long).unwrap(), None);
}

#[test]
fn files_of_others_are_neither_read_nor_replaced_nor_removed() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let theirs = r#"{"cdiVersion":"0.5.0","kind":"akri.sh/cams","devices":[]}"#;
    let names = ["akri.sh-cams.json", "nvidia.com-gpu_leafhost.json"];
    let at = |name: &str| directory.directory().join(name);
    for name in names {
        fs::write(at(name), theirs).unwrap();
    }
    assert!(directory.classes().unwrap().is_empty());
    directory.write(&mk_spec("cams", &["a"])).unwrap();
    assert!(directory.remove("cams").unwrap());
    for name in names {
        assert_eq!(fs::read_to_string(at(name)).unwrap(), theirs);
    }
}

#[test]
fn a_file_of_ours_that_is_no_spec_of_its_class_is_named_and_replaced() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let path = directory.path("cams");
    let other = r#"{"cdiVersion":"0.5.0","kind":"akri.sh/other","devices":[]}"#;
    let breaks: [&dyn Fn(); 3] = [
        &|| fs::write(&path, "{\"cdiVersion\": \"0.").unwrap(),
        &|| fs::write(&path, other).unwrap(),
        &|| {
            fs::remove_file(&path).unwrap();
            let made = std::process::Command::new("mkfifo").arg(&path).status();
            assert!(made.unwrap().success());
        },
    ];
    for break_it in breaks {
        break_it();
        assert_eq!(directory.classes().unwrap(), ["cams".to_owned()].into());
        assert_eq!(directory.read("cams").unwrap(), None);
        let spec = mk_spec("cams", &["a"]);
        assert!(directory.write(&spec).unwrap());
        assert_eq!(specs(&directory), [("cams".into(), spec)].into());
    }
}

#[test]
fn what_a_crash_left_is_cleared_and_never_ends_in_json() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let left = directory.temporary().unwrap();
    let (_, path) = left.keep().unwrap();
    assert!(
        !path
            .extension()
            .is_some_and(|end| end == "json" || end == "yaml")
    );
    directory.classes().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    for path in [blocked.clone(), blocked.join("cdi")] {
        let directory = SpecDir::new(&path, "akri.sh", "leafhost", Readers::Everybody).unwrap();
        for error in [
            directory.create().unwrap_err(),
            directory.write(&mk_spec("cams", &["a"])).unwrap_err(),
        ] {
            let text = error.to_string();
            assert!(
                text.contains("--cdi-dir") && text.contains("file"),
                "{text}"
            );
        }
    }
    for (kind, words) in [
        (ErrorKind::PermissionDenied, "run as root"),
        (ErrorKind::ReadOnlyFilesystem, "read-only"),
        (ErrorKind::StorageFull, "no space"),
    ] {
        assert!(
            failed("write", &blocked, kind.into())
                .to_string()
                .contains(words)
        );
    }
}

#[test]
fn a_spec_a_runtime_would_refuse_is_never_written() {
    let (_folder, directory) = mk_dir();
    let table: [(Break, &str); 9] = [
        (|s| s.kind = "akri.sh".into(), "vendor/class"),
        (|s| s.kind = "akri.sh/a".into(), "one character"),
        (|s| s.kind = "other.sh/cams".into(), "vendor akri.sh"),
        (|s| s.devices.clear(), "no device"),
        (|s| s.devices.push(s.devices[0].clone()), "twice"),
        (|s| s.devices[0].name = "a b".into(), "device name"),
        (
            |s| s.devices[0].container_edits = ContainerEdits::default(),
            "no env, device node or mount",
        ),
        (
            |s| s.devices[0].container_edits.env.push("A".into()),
            "NAME=value",
        ),
        (
            |s| {
                let node = crate::spec::DeviceNode::new("/dev/a", "/dev/a", "x");
                s.container_edits.device_nodes.push(node);
            },
            "permissions",
        ),
    ];
    for (break_it, words) in table {
        let mut spec = mk_spec("cams", &["a"]);
        break_it(&mut spec);
        let text = directory.write(&spec).unwrap_err().to_string();
        assert!(text.contains(words), "{text:?} does not say {words:?}");
    }
    assert!(!directory.directory().exists());
}

#[test]
fn the_value_of_a_variable_is_in_no_error() {
    let (_folder, directory) = mk_dir();
    let mut spec = mk_spec("cams", &["a"]);
    spec.container_edits.env.push("TOKEN=secret\0".into());
    let text = directory.write(&spec).unwrap_err().to_string();
    assert!(text.contains("TOKEN") && !text.contains("secret"), "{text}");
}

#[test]
fn a_reader_never_sees_half_a_file() {
    let (_folder, directory) = mk_dir();
    let names: Vec<String> = (0..2000).map(|n| format!("device-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let specs = [mk_spec("cams", &names), mk_spec("cams", &names[..1])];
    directory.write(&specs[0]).unwrap();
    let path = directory.path("cams");
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for spec in specs.iter().cycle().take(40) {
                directory.write(spec).unwrap();
            }
        });
        let mut seen = 0;
        while !writer.is_finished() || seen == 0 {
            let spec: Spec = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
            assert!(specs.contains(&spec));
            seen += 1;
        }
    });
}

#[test]
fn a_file_that_others_may_read_is_written_anew_where_they_need_not() {
    let (folder, directory) = mk_dir();
    let spec = mk_spec("cams", &["a"]);
    directory.write(&spec).unwrap();
    let directory = mk_dir_for(&folder, Readers::Root);
    for expected in [true, false] {
        assert_eq!(directory.write(&spec).unwrap(), expected);
        let found = fs::metadata(directory.path("cams")).unwrap();
        assert_eq!(found.permissions().mode() & 0o777, 0o640);
    }
}

#[test]
fn a_file_that_is_shorter_longer_or_another_is_written_anew() {
    let (_folder, directory) = mk_dir();
    let spec = mk_spec("cams", &["a", "b"]);
    directory.write(&spec).unwrap();
    let path = directory.path("cams");
    let whole = fs::read(&path).unwrap();
    let mut other = whole.clone();
    other[whole.len() / 2] ^= 1;
    let longer = [whole.as_slice(), b"\n"].concat();
    for held in [&whole[..whole.len() - 1], &other, &longer, b""] {
        fs::write(&path, held).unwrap();
        assert!(directory.write(&spec).unwrap());
        assert_eq!(fs::read(&path).unwrap(), whole);
    }
}
