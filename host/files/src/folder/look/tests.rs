use std::os::unix::fs::symlink;

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
        ("notes.txt", Some("is none that is read here")),
        ("../outside.large", Some("")),
    ] {
        let (folder, digest) = (folder.clone(), digest.clone());
        let read = in_time(move || fetch(&folder, &RULES, name, &digest));
        match (read, why) {
            (Ok(bytes), None) => assert_eq!(*bytes, *text.as_bytes(), "{name}"),
            (Err(told), Some(why)) => assert!(told.starts_with(why), "{name}: {told}"),
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
        let moved = read(folder.path(), name, kind, settled);
        assert!(matches!(moved, Read::MovedOn), "{moved:?}");
    }
}
