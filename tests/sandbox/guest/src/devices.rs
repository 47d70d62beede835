//! Forbidden and excessive requests to udev. They panic if one succeeds.
#![allow(
    clippy::expect_used,
    reason = "whoever made the test is told by a panic"
)]

use crate::answers;
use crate::bindings::leafhost::discovery::types::{Discovery, Wake};
use crate::bindings::leafhost::udev::devices::{Error, find, owners, read};
use crate::bindings::leafhost::udev::types::{Field, Term};

const NULL: &str = "/devices/virtual/mem/null";

/// Runs the action; returns false if it is not known.
pub fn run(action: &str) -> bool {
    match action {
        "foreign" => foreign(),
        "attributes" => attributes(),
        "rules" => rules(),
        _ => return false,
    }
    true
}

fn term(field: Field, key: Option<&str>, value: &str) -> Term {
    Term {
        field,
        key: key.map(str::to_owned),
        negated: false,
        value: value.to_owned(),
    }
}

/// Requests devices of subsystems that are not granted; only `net` is.
fn foreign() {
    for rule in [
        term(Field::Subsystem, None, "mem"),
        term(Field::Kernel, None, "null"),
        term(Field::Devpath, None, "/devices/virtual/mem/*"),
        term(Field::Subsystems, None, "mem"),
        term(Field::Attr, Some("dev"), "1:3"),
    ] {
        let found = find(&[vec![rule.clone()]]).expect("there is a sysfs");
        assert!(found.is_empty(), "{rule:?} found {found:?}");
    }
    let all = find(&[vec![term(Field::Devpath, None, "*")]]).expect("there is a sysfs");
    for device in &all {
        let shown = device.subsystem.as_deref();
        assert!(shown.is_none_or(|name| name == "net"), "{device:?}");
        assert!(
            shown.is_some() || device.properties.is_empty(),
            "{device:?}"
        );
    }
    assert!(all.iter().any(|device| device.kernel == "lo"), "no lo");
    assert_eq!(
        values(&[
            (NULL, "dev"),
            ("/devices/virtual/net/lo", "mtu/../../../mem/null/dev")
        ]),
        [None, None]
    );
}

fn values(asked: &[(&str, &str)]) -> Vec<Option<String>> {
    let asked: Vec<_> = asked
        .iter()
        .map(|(device, name)| ((*device).to_owned(), (*name).to_owned()))
        .collect();
    read(&asked).expect("there is a sysfs")
}

/// Requests binary attributes, links and paths that are not attributes; all subsystems are granted.
fn attributes() {
    assert_eq!(values(&[(NULL, "dev")]), [Some("1:3".to_owned())]);
    let long = "x/".repeat(2000);
    let up = format!("{}etc/passwd", "../".repeat(20));
    for (device, name) in [
        (NULL, up.as_str()),
        (NULL, "/etc/passwd"),
        (NULL, "subsystem/../../../etc/passwd"),
        (NULL, "subsystem/zero/dev"),
        (NULL, "../zero/dev"),
        (NULL, "./dev"),
        (NULL, "dev\0"),
        (NULL, ""),
        (NULL, "."),
        (NULL, "dev/"),
        (NULL, long.as_str()),
        ("/devices/virtual/mem/null/../zero", "dev"),
        ("/devices/virtual/mem/../../../../etc", "passwd"),
        ("/../etc", "passwd"),
        ("//etc", "passwd"),
        ("", "etc/passwd"),
        ("/", "kernel/notes"),
        ("/kernel", "notes"),
        ("/kernel/btf", "vmlinux"),
        ("/firmware/dmi/tables", "DMI"),
        ("/class/mem/null", "dev"),
        ("/devices", "virtual/mem/null/dev"),
        ("/devices/virtual/mem/null\n", "dev"),
    ] {
        assert_eq!(values(&[(device, name)]), [None], "{device:?} {name:?}");
    }
    // A PCI device's configuration space and resources.
    for device in find(&[vec![term(Field::Subsystem, None, "pci")]]).expect("there is a sysfs") {
        let path = device.devpath.as_str();
        let windows = values(&[(path, "config"), (path, "rom"), (path, "resource0")]);
        assert_eq!(windows, [None, None, None], "{path}");
    }
    let is_owned = |node: &str| {
        let owners = owners(&[node.to_owned()]).expect("there is a sysfs");
        owners.iter().any(Option::is_some)
    };
    assert!(!is_owned("/dev/null"), "it was not found yet");
    let null = term(Field::Devpath, None, NULL);
    assert_eq!(find(&[vec![null]]).expect("there is a sysfs").len(), 1);
    assert!(is_owned("/dev/null"));
    for path in [
        "/dev/zero",
        "/etc/passwd",
        "/dev/../dev/null",
        "/dev/null/",
        "",
    ] {
        assert!(!is_owned(path), "{path:?}");
    }
    assert!(matches!(
        owners(&vec![String::new(); 4097]),
        Err(Error::InvalidRule(_))
    ));
    let many = vec![(NULL.to_owned(), "dev".to_owned()); 4097];
    assert!(matches!(read(&many), Err(Error::InvalidRule(_))));
    let long = vec![("/".repeat(1 << 20), "dev".to_owned()); 2];
    assert!(matches!(read(&long), Err(Error::InvalidRule(_))));
}

/// Sends rules beyond every limit.
fn rules() {
    let term = |value: &str| term(Field::Kernel, None, value);
    let many = vec![vec![term("*")]; 100_000];
    let wide = vec![vec![term("*"); 100_000]];
    let long = vec![vec![term(&"*".repeat(1 << 20))]];
    for rules in [many, wide, long, vec![Vec::new()]] {
        assert!(matches!(find(&rules), Err(Error::InvalidRule(_))));
    }
}

/// Returns a pattern of the highest allowed cost.
fn costly(field: Field) -> Term {
    term(field, None, &"(.?){90}y{90}|".repeat(60))
}

/// Returns the answer for an action; `None` if it is not an answer.
pub fn answer(action: &str) -> Option<Discovery> {
    let rule = match action {
        "wakes" => vec![costly(Field::Kernels); 32],
        _ => return None,
    };
    let mut answer = answers::good();
    // Eight times as many terms as are accepted.
    answer
        .wake
        .extend((0..63).map(|_| Wake::Udev(rule.clone())));
    Some(answer)
}
