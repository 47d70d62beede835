use std::os::unix::fs::{PermissionsExt as _, symlink};

use nix::sys::stat::Mode;

use super::*;
use crate::regular::tests::in_time;

const RULES: Rules = Rules {
    kinds: &[
        Kind {
            suffix: ".bare",
            max: 10,
            links: false,
            held: true,
        },
        Kind {
            suffix: ".large",
            max: 10,
            links: true,
            held: false,
        },
    ],
    nested: false,
    max_files: 100,
    stray: None,
    secret: false,
};

#[test]
fn a_file_is_read_later_by_the_same_rules_and_only_as_it_was() {
    let top = tempfile::tempdir().unwrap();
    let folder = top.path().join("f");
    fs::create_dir(&folder).unwrap();
    let at = |name: &str| folder.join(name);
    let text = "content";
    fs::write(at("plain.large"), text).unwrap();
    fs::write(at("plain.bare"), text).unwrap();
    fs::write(at("other.large"), "others").unwrap();
    fs::write(at("grown.large"), "x".repeat(11)).unwrap();
    fs::write(at("notes.txt"), text).unwrap();
    fs::write(top.path().join("outside.large"), text).unwrap();
    fs::create_dir(at("folder.large")).unwrap();
    nix::unistd::mkfifo(&at("fifo.large"), Mode::S_IRWXU).unwrap();
    symlink("plain.large", at("inside.large")).unwrap();
    symlink("plain.bare", at("link.bare")).unwrap();
    symlink("fifo.large", at("to-fifo.large")).unwrap();
    symlink("../outside.large", at("out.large")).unwrap();
    symlink("nowhere", at("dangling.large")).unwrap();
    let digest = regular::digest_of(text.as_bytes());
    for (name, why) in [
        ("plain.large", None),
        ("plain.bare", None),
        ("inside.large", None),
        ("other.large", Some("is being replaced")),
        ("grown.large", Some("has 11 bytes, at most 10")),
        ("folder.large", Some("is not a regular file")),
        ("fifo.large", Some("is not a regular file")),
        ("to-fifo.large", Some("is not a regular file")),
        ("link.bare", Some("is a link")),
        ("out.large", Some("is a link out of the folder")),
        ("dangling.large", Some("is a link that leads nowhere")),
        ("missing.large", Some("is missing")),
        ("notes.txt", Some("is not a file that is read here")),
        ("../outside.large", Some("")),
    ] {
        let (folder, digest) = (folder.clone(), digest.clone());
        let read = in_time(move || fetch(&folder, &RULES, name, &digest));
        match (read, why) {
            (Ok(bytes), None) => assert_eq!(*bytes, *text.as_bytes(), "{name}"),
            (Err(reported), Some(why)) => assert!(reported.starts_with(why), "{name}: {reported}"),
            (read, _) => panic!("{name}: {read:?}"),
        }
    }
}

#[test]
fn of_a_kind_that_is_not_held_only_the_digest_is_read() {
    let folder = tempfile::tempdir().unwrap();
    for (name, content) in [
        ("a.bare", Content::Bytes(b"text".as_slice().into())),
        ("a.large", Content::Digest(regular::digest_of(b"text"))),
    ] {
        let path = folder.path().join(name);
        fs::write(&path, "text").unwrap();
        let settled = stamp(&fs::metadata(&path).unwrap());
        let kind = RULES.kind(name).unwrap();
        let held = read(folder.path(), name, kind, settled).content();
        assert_eq!(held, Some(content));
        fs::write(&path, "another").unwrap();
        let changed = read(folder.path(), name, kind, settled);
        assert!(matches!(changed, Read::Changed), "{changed:?}");
    }
}

#[test]
fn files_whose_names_cannot_be_shown_are_reported_and_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let nested = Rules {
        nested: true,
        ..RULES
    };
    let names: [&[u8]; 6] = [
        b"good.bare",
        b"a\nINFO fine.bare",
        "a\u{202e}b.bare".as_bytes(),
        b"a\xff.bare",
        b"notes\xff.txt",
        b".hidden\n.bare",
    ];
    for (rules, below) in [(&RULES, ""), (&nested, "sub"), (&nested, "s\nub")] {
        let path = folder.path().join(below.len().to_string());
        fs::create_dir_all(path.join(below)).unwrap();
        for name in names {
            fs::write(path.join(below).join(OsStr::from_bytes(name)), "text").unwrap();
        }
        let scan = Scan::of(&path, rules);
        let found: Vec<_> = scan.found.keys().map(String::as_str).collect();
        let (expected, reported): (&[&str], &[&str]) = match below {
            "" => (
                &["good.bare"],
                &["a\\nINFO fine.bare", "a\\u{202e}b.bare", "a\\xFF.bare"],
            ),
            "sub" => (
                &["sub/good.bare"],
                &[
                    "sub/a\\nINFO fine.bare",
                    "sub/a\\u{202e}b.bare",
                    "sub/a\\xFF.bare",
                ],
            ),
            _ => (&[], &["s\\nub"]),
        };
        assert_eq!(found, expected);
        let [problem] = scan.problems.as_slice() else {
            panic!("{:?}", scan.problems);
        };
        let names: Vec<String> = reported.iter().map(|name| format!("\"{name}\"")).collect();
        let end = format!("do not show: {}; rename them", names.join(", "));
        assert!(problem.ends_with(&end), "{problem}");
        assert!(rules.kind("a\nb.bare").is_none() && rules.kind("s\n/b.bare").is_none());
    }
}

#[test]
fn what_is_in_the_place_of_a_folder_counts_as_none() {
    let top = tempfile::tempdir().unwrap();
    let at = |name: &str| top.path().join(name);
    fs::write(at("file"), "").unwrap();
    nix::unistd::mkfifo(&at("fifo"), Mode::S_IRWXU).unwrap();
    symlink("file", at("link")).unwrap();
    symlink("nowhere", at("dangling")).unwrap();
    for name in ["file", "fifo", "link", "file/below", "dangling", "missing"] {
        let path = at(name);
        let scan = in_time(move || Scan::of(&path, &RULES));
        assert!(!scan.exists && scan.readable, "{name}");
        assert_eq!(scan.problems, Vec::<String>::new());
    }
}

#[test]
fn what_seems_to_be_meant_for_the_folder_and_is_not_read_is_noted() {
    let folder = tempfile::tempdir().unwrap();
    let rules = Rules {
        stray: Some(crate::folder::stray::among_configurations),
        ..RULES
    };
    for name in ["a.bare", "b.json", "c.YAML", "d.wasm", "README", ".e.json"] {
        fs::write(folder.path().join(name), "text").unwrap();
    }
    fs::create_dir(folder.path().join("old")).unwrap();
    let noted = |rules: &Rules| -> Vec<String> {
        let notes = Scan::of(folder.path(), rules).stray.notes(Path::new("/f"));
        notes.into_iter().map(|note| note.source).collect()
    };
    assert_eq!(
        noted(&rules),
        ["/f/b.json", "/f/c.YAML", "/f/d.wasm", "/f/old"]
    );
    assert_eq!(noted(&RULES), [""; 0]);
}

#[test]
fn a_secret_that_every_user_can_read_is_noted() {
    let top = tempfile::tempdir().unwrap();
    let rules = Rules {
        nested: true,
        secret: true,
        ..RULES
    };
    let (home, folder) = (top.path().join("home"), top.path().join("home/secrets"));
    fs::create_dir_all(folder.join("cam")).unwrap();
    let set = |path: &Path, mode: u32| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for (file, mode) in [("a.bare", 0o644), ("b.bare", 0o640), ("c.bare", 0o600)] {
        fs::write(folder.join("cam").join(file), "text").unwrap();
        set(&folder.join("cam").join(file), mode);
    }
    let noted = |rules: &Rules| Scan::of(&folder, rules).stray.notes(Path::new("/s"));
    for (closed, expected) in [
        (None, 1),
        (Some(&home), 0),
        (Some(&folder), 0),
        (Some(&folder.join("cam")), 0),
    ] {
        for path in [&home, &folder, &folder.join("cam")] {
            set(path, 0o755);
        }
        if let Some(closed) = closed {
            set(closed, 0o750);
        }
        assert_eq!(noted(&rules).len(), expected, "{closed:?}");
    }
    for path in [&home, &folder, &folder.join("cam")] {
        set(path, 0o755);
    }
    assert_eq!(
        noted(&rules)[0].to_string(),
        "/s/cam/a.bare: can be read by every user of this machine; run chmod o-r on it"
    );
    let public = Rules {
        secret: false,
        ..rules
    };
    assert_eq!(noted(&public), []);
}
