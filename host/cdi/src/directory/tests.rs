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

fn mk_dir() -> (tempfile::TempDir, SpecDir) {
    let folder = tempfile::tempdir().unwrap();
    let directory = SpecDir::new(folder.path().join("cdi"), "akri.sh", "leafhost").unwrap();
    (folder, directory)
}

fn mk_pipe(path: &Path) {
    let made = std::process::Command::new("mkfifo").arg(path).status();
    assert!(made.unwrap().success());
}

#[test]
fn a_spec_is_written_once_read_back_replaced_and_removed() {
    let (_folder, directory) = mk_dir();
    let first = mk_spec("cams", &["a", "b"]);
    assert_eq!(directory.write(&first).unwrap(), Written::Created);
    let path = directory.path("cams");
    let inode = |path: &Path| std::os::unix::fs::MetadataExt::ino(&fs::metadata(path).unwrap());
    let before = inode(&path);
    assert_eq!(directory.write(&first).unwrap(), Written::Unchanged);
    assert_eq!(inode(&path), before, "an unchanged spec causes no write");
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        MODE
    );
    let second = mk_spec("cams", &["a"]);
    assert_eq!(directory.write(&second).unwrap(), Written::Replaced);
    assert_eq!(
        directory.read().unwrap().specs,
        [("cams".into(), second)].into()
    );
    assert!(directory.remove("cams").unwrap());
    assert!(!directory.remove("cams").unwrap());
    assert_eq!(fs::read_dir(directory.directory()).unwrap().count(), 0);
}

#[test]
fn a_class_of_any_length_has_a_file() {
    for length in [2, 179, 180, 181, 226, 227, 233, 234, 236] {
        let (_folder, directory) = mk_dir();
        let [one, two] = ["x", "y"].map(|end| "c".repeat(length - 1) + end);
        let classes: BTreeSet<_> = [&one, &two].into_iter().cloned().collect();
        for class in &classes {
            let spec = mk_spec(class, &["a"]);
            assert_eq!(
                directory.write(&spec).unwrap(),
                Written::Created,
                "{length}"
            );
            assert_eq!(directory.write(&spec).unwrap(), Written::Unchanged);
            let name = directory.path(class);
            let name = name.file_name().unwrap().to_str().unwrap();
            assert!(name.len() <= MAX_NAME && name.ends_with("_leafhost.json"));
            assert_eq!(name.contains(class), length <= 233, "{name}");
        }
        let published = directory.read().unwrap();
        assert!(published.specs.keys().eq(&classes), "{length}");
        assert!(directory.remove(&one).unwrap() && directory.remove(&two).unwrap());
        assert_eq!(fs::read_dir(directory.directory()).unwrap().count(), 0);
    }
}

#[test]
fn what_lies_under_a_shortened_name_is_ours_only_if_its_class_is_so_called() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let class = "c".repeat(236);
    let path = directory.path(&class);
    let foreign = r#"{"cdiVersion":"0.5.0","kind":"akri.sh/other","devices":[]}"#;
    let ours = format!(r#"{{"cdiVersion":"9.0.0","kind":"akri.sh/{class}","devices":1}}"#);
    for (text, foreign, damaged, stays) in [
        ("{\"kind", 0, 0, false),
        (foreign, 1, 0, true),
        (&ours, 0, 0, false),
        (
            &ours.replace(":1}", ":[{\"name\":\"a\",\"containerEdits\":1}]}"),
            0,
            1,
            true,
        ),
    ] {
        fs::write(&path, text).unwrap();
        let published = directory.read().unwrap();
        assert_eq!(
            (published.foreign.len(), published.damaged.len()),
            (foreign, damaged),
            "{text}"
        );
        assert_eq!(path.exists(), stays, "{text}");
        let written = directory.write(&mk_spec(&class, &["a"]));
        assert_eq!(written.is_ok(), foreign == 0, "{written:?}");
    }
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(directory.read().unwrap().foreign.len(), 1);
}

#[test]
fn files_of_others_are_neither_read_nor_replaced_nor_removed() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let at = |name: &str| directory.directory().join(name);
    let theirs = r#"{"cdiVersion":"0.5.0","kind":"akri.sh/other","devices":[]}"#;
    for name in [
        "akri.sh-cams_leafhost.json",
        "akri.sh-cams.json",
        "nvidia.com-gpu_leafhost.json",
    ] {
        fs::write(at(name), theirs).unwrap();
    }
    std::os::unix::fs::symlink("/dev/null", at("akri.sh-linked_leafhost.json")).unwrap();
    let published = directory.read().unwrap();
    assert!(published.specs.is_empty() && published.damaged.is_empty());
    assert_eq!(published.foreign.len(), 2);
    for class in ["cams", "linked"] {
        let error = directory.write(&mk_spec(class, &["a"])).unwrap_err();
        assert!(matches!(error, Error::Foreign { .. }), "{error}");
        assert!(
            error
                .to_string()
                .contains(&format!("akri.sh-{class}_leafhost.json"))
        );
        assert!(matches!(
            directory.remove(class),
            Err(Error::Foreign { .. })
        ));
    }
    assert_eq!(
        fs::read_to_string(at("akri.sh-cams_leafhost.json")).unwrap(),
        theirs
    );
}

#[test]
fn a_damaged_file_of_ours_is_named_and_replaced() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    fs::write(directory.path("cams"), "{\"cdiVersion\": \"0.").unwrap();
    assert_eq!(
        directory.read().unwrap().damaged.keys().collect::<Vec<_>>(),
        ["cams"]
    );
    assert_eq!(
        directory.write(&mk_spec("cams", &["a"])).unwrap(),
        Written::Replaced
    );
    assert!(directory.read().unwrap().damaged.is_empty());
}

#[test]
fn a_file_of_ours_that_is_larger_than_any_spec_is_not_read_and_replaced() {
    for class in ["cams".to_owned(), "c".repeat(236)] {
        let (_folder, directory) = mk_dir();
        directory.create().unwrap();
        let path = directory.path(&class);
        let large = || {
            let file = fs::File::create(&path).unwrap();
            file.set_len(MAX_FILE + 1).unwrap();
        };
        large();
        let published = directory.read().unwrap();
        assert!(published.specs.is_empty() && published.foreign.is_empty());
        // Whose class is not in its name, nobody can tell what it was.
        let named = published.damaged.get(&class).map(String::as_str);
        assert_eq!(named, path.exists().then_some("it has more than 64 MiB"));
        large();
        let spec = mk_spec(&class, &["a"]);
        assert_eq!(directory.write(&spec).unwrap(), Written::Replaced);
        assert_eq!(
            directory.read().unwrap().specs,
            [(class.clone(), spec)].into()
        );
        large();
        assert!(directory.remove(&class).unwrap());
    }
}

#[test]
fn what_became_a_pipe_since_it_was_looked_at_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("pipe");
    mk_pipe(&pipe);
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(read(&pipe)));
    let read = receiver.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(read.unwrap().unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_device_that_another_file_defines_is_reported_and_not_written() {
    for (name, content) in [
        (
            "theirs.json",
            r#"{"cdiVersion":"0.5.0","kind":"akri.sh/cams","devices":[{"name":"b","containerEdits":{}}]}"#,
        ),
        (
            "theirs.yaml",
            "cdiVersion: 0.5.0\nkind: akri.sh/cams\ndevices:\n- name: b\n  containerEdits: {hooks: []}\n",
        ),
    ] {
        let (_folder, directory) = mk_dir();
        directory.create().unwrap();
        fs::write(directory.directory().join(name), content).unwrap();
        let error = directory.write(&mk_spec("cams", &["a", "b"])).unwrap_err();
        let text = error.to_string();
        assert!(
            text.contains("akri.sh/cams=b") && text.contains(name),
            "{text}"
        );
        assert!(!directory.path("cams").exists());
        assert_eq!(
            directory.write(&mk_spec("cams", &["a"])).unwrap(),
            Written::Created
        );
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
    directory.read().unwrap();
    assert!(!path.exists());
}

#[test]
fn a_folder_that_cannot_be_written_is_named_with_the_remedy() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("file");
    fs::write(&blocked, "").unwrap();
    for path in [blocked.clone(), blocked.join("cdi")] {
        let directory = SpecDir::new(&path, "akri.sh", "leafhost").unwrap();
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
            let spec = Spec::from_json(&fs::read(&path).unwrap()).unwrap();
            assert!(specs.contains(&spec));
            seen += 1;
        }
    });
}

#[test]
fn what_others_put_there_is_neither_waited_for_nor_repeated_at_length() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let at = |name: &str| directory.directory().join(name);
    mk_pipe(&at("theirs.json"));
    std::os::unix::fs::symlink("/dev/zero", at("theirs.yaml")).unwrap();
    fs::File::create(at("large.json"))
        .unwrap()
        .set_len(MAX_FILE + 1)
        .unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    let writer = directory.clone();
    std::thread::spawn(move || sender.send(writer.write(&mk_spec("cams", &["a"]))));
    let written = receiver.recv_timeout(std::time::Duration::from_secs(20));
    assert_eq!(written.unwrap().unwrap(), Written::Created);
    let kind = "k\\n".repeat(1 << 18);
    let theirs = format!(r#"{{"cdiVersion":"0.5.0","kind":"{kind}","devices":[]}}"#);
    fs::write(directory.path("more"), theirs).unwrap();
    let error = directory.write(&mk_spec("more", &["a"])).unwrap_err();
    assert!(error.to_string().len() < 500, "{error}");
}

/// Holds the folder; another test may be starting a program just now, which has the lock until it is that program.
fn hold(directory: &SpecDir) -> Option<Hold> {
    let patience = std::time::Instant::now() + std::time::Duration::from_secs(20);
    let mut held = None;
    while let Err(error) = directory.hold(&mut held) {
        assert!(std::time::Instant::now() < patience, "{error}");
        std::thread::yield_now();
    }
    held
}

#[test]
fn a_folder_is_held_by_one_until_it_is_dropped_or_another_folder_lies_there() {
    let (_folder, directory) = mk_dir();
    let other = directory.clone();
    assert!(hold(&directory).is_none(), "there is none yet");
    directory.create().unwrap();
    let mut first = hold(&directory);
    assert!(first.is_some());
    let mut second = None;
    let error = other.hold(&mut second).unwrap_err().to_string();
    assert!(error.contains("another agent") && error.contains("--cdi-dir"));
    directory.hold(&mut first).unwrap();
    assert!(first.is_some() && other.hold(&mut second).is_err() && second.is_none());
    assert!(directory.read().unwrap().foreign.is_empty());
    let mode = fs::metadata(directory.lock_path()).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o600);
    drop(first);
    let mut second = hold(&other);
    fs::rename(other.directory(), other.directory().with_extension("old")).unwrap();
    other.create().unwrap();
    let first = hold(&directory);
    assert!(first.is_some() && other.hold(&mut second).is_err());
}

#[test]
fn an_error_lets_go_of_no_folder() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let mut held = hold(&directory);
    let lock = directory.lock_path();
    let aside = lock.with_extension("aside");
    fs::rename(&lock, &aside).unwrap();
    fs::create_dir(&lock).unwrap();
    let error = directory.hold(&mut held).unwrap_err();
    assert!(error.to_string().contains(".lock"), "{error}");
    fs::remove_dir(&lock).unwrap();
    fs::rename(&aside, &lock).unwrap();
    assert!(directory.hold(&mut None).is_err());
    directory.hold(&mut held).unwrap();
    assert!(held.is_some());
}

#[test]
fn a_lock_that_was_removed_is_made_anew_and_held() {
    let (_folder, directory) = mk_dir();
    directory.create().unwrap();
    let mut held = hold(&directory);
    fs::remove_file(directory.lock_path()).unwrap();
    directory.hold(&mut held).unwrap();
    assert!(held.is_some() && directory.hold(&mut None).is_err());
}

#[test]
fn where_a_folder_should_be_a_pipe_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    mk_pipe(&path);
    let directory = SpecDir::new(path, "akri.sh", "leafhost").unwrap();
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(directory.hold(&mut None)));
    let held = receiver.recv_timeout(std::time::Duration::from_secs(20));
    assert!(held.unwrap().is_err());
}
