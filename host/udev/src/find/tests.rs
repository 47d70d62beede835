use std::path::Path;

use super::*;
use crate::rule::{Field, InvalidRule, Term};

fn mk_rule(terms: &[(Field, Option<&str>, bool, &str)]) -> Result<Rule, InvalidRule> {
    Rule::new(
        terms
            .iter()
            .map(|(field, key, equal, value)| Term {
                field: *field,
                key: key.map(str::to_owned),
                negated: !equal,
                value: (*value).to_owned(),
            })
            .collect(),
    )
}

/// Returns true if this machine shows `/dev/null` in sysfs, as every kernel does if `/sys` is mounted.
fn has_null() -> bool {
    let has = Path::new("/sys/devices/virtual/mem/null/uevent").exists();
    if !has {
        eprintln!("skipped: /sys is not mounted here");
    }
    has
}

fn null_of(found: &Found) -> Option<&Device> {
    found
        .devices
        .iter()
        .find(|device| device.devpath == "/devices/virtual/mem/null")
}

#[test]
fn the_null_device_is_found_with_its_node() -> Result<(), Box<dyn std::error::Error>> {
    if !has_null() {
        return Ok(());
    }
    let rules = [
        mk_rule(&[(Field::Kernel, None, true, "zero|nul?")])?,
        mk_rule(&[(Field::Devpath, None, true, "/devices/virtual/mem/null")])?,
        mk_rule(&[
            (Field::Attr, Some("dev"), true, "1:3"),
            (Field::Kernel, None, false, "z*"),
        ])?,
        mk_rule(&[
            (Field::Kernel, None, true, "null"),
            (Field::Kernel, None, true, "zero"),
        ])?,
    ];
    let found = find(&rules, &Subsystems::new(["*"]))?;
    let null = null_of(&found).ok_or("no null")?;
    assert_eq!(null.rules, [0, 1, 2]);
    assert_eq!(null.kernel, "null");
    assert_eq!(null.subsystem.as_deref(), Some("mem"));
    assert_eq!(null.devnode.as_deref(), Some("/dev/null"));
    assert!(
        null.properties
            .contains(&("DEVNAME".into(), "/dev/null".into()))
    );
    assert!(null.properties.is_sorted());
    assert_eq!(found.devices.len(), 2, "{:?}", found.devices);
    assert!(found.devices.is_sorted_by_key(|device| &device.devpath));
    let missed = |found: &Found| {
        let note = found.notes.iter().find(|note| note.subject == null.devpath);
        note.map(|note| (note.rule.clone(), note.reason.clone()))
    };
    assert_eq!(missed(&found), None, "a device that is found is not missed");
    let (_, nearly) = rules.split_at(3);
    assert_eq!(
        missed(&find(nearly, &Subsystems::new(["*"]))?),
        Some((
            r#"KERNEL=="null", KERNEL=="zero""#.to_owned(),
            r#"KERNEL=="zero" does not hold: kernel is "null""#.to_owned()
        ))
    );
    Ok(())
}

#[test]
fn devices_of_a_subsystem_that_is_not_allowed_are_invisible()
-> Result<(), Box<dyn std::error::Error>> {
    if !has_null() {
        return Ok(());
    }
    let rules = [mk_rule(&[(Field::Kernel, None, true, "null|loop0")])?];
    for (globs, expected) in [
        (["mem"], true),
        (["m*"], true),
        (["block"], false),
        (["tty"], false),
    ] {
        let found = find(&rules, &Subsystems::new(globs))?;
        assert_eq!(null_of(&found).is_some(), expected, "{globs:?}");
    }
    Ok(())
}

#[test]
fn every_parent_is_in_the_answer_and_without_facts_if_not_allowed()
-> Result<(), Box<dyn std::error::Error>> {
    if !has_null() {
        return Ok(());
    }
    let rules = [mk_rule(&[(Field::Subsystem, None, true, "*")])?];
    let all = find(&rules, &Subsystems::new(["*"]))?;
    for device in &all.devices {
        if let Some(parent) = &device.parent {
            let there = all.devices.iter().any(|other| other.devpath == *parent);
            assert!(there, "{parent} of {} is missing", device.devpath);
            assert!(device.devpath.starts_with(&format!("{parent}/")));
        }
    }
    let Some(child) = all.devices.iter().find(|device| {
        device.parent.as_ref().is_some_and(|parent| {
            all.devices.iter().any(|other| {
                other.devpath == *parent
                    && other.subsystem.is_some()
                    && other.subsystem != device.subsystem
            })
        })
    }) else {
        eprintln!("skipped: no device here has a parent of another subsystem");
        return Ok(());
    };
    let subsystem = child.subsystem.clone().ok_or("no subsystem")?;
    let found = find(&rules, &Subsystems::new([subsystem]))?;
    let parent = found
        .devices
        .iter()
        .find(|device| Some(&device.devpath) == child.parent.as_ref())
        .ok_or("no parent")?;
    let nameless = Device {
        devpath: parent.devpath.clone(),
        parent: parent.parent.clone(),
        kernel: parent.kernel.clone(),
        ..Device::default()
    };
    assert_eq!(*parent, nameless);
    Ok(())
}

#[test]
fn a_regular_expression_leaves_one_note_per_term() -> Result<(), Box<dyn std::error::Error>> {
    if !has_null() {
        return Ok(());
    }
    let rules = [mk_rule(&[
        (Field::Subsystem, None, true, "mem"),
        (Field::Kernels, None, true, "(null|zero)"),
    ])?];
    let found = find(&rules, &Subsystems::new(["mem"]))?;
    assert_eq!(
        null_of(&found).map(|null| null.rules.clone()),
        Some(vec![0])
    );
    let about: Vec<&Note> = found
        .notes
        .iter()
        .filter(|note| note.reason.contains("regular expression"))
        .collect();
    assert_eq!(about.len(), 1);
    assert_eq!(
        about[0].reason,
        r#"KERNELS=="(null|zero)" holds only as a regular expression, as Akri read it (and 1 other devices); write it as a glob"#
    );
    Ok(())
}

#[test]
fn a_rule_that_no_device_comes_near_to_says_what_is_not_there()
-> Result<(), Box<dyn std::error::Error>> {
    if !has_null() {
        return Ok(());
    }
    let rules = [
        mk_rule(&[(Field::Subsystem, None, true, "no-such-bus")])?,
        mk_rule(&[
            (Field::Subsystem, None, true, "mem"),
            (Field::Kernel, None, true, "null"),
        ])?,
        mk_rule(&[
            (Field::Subsystem, None, true, "no-such-bus"),
            (Field::Kernel, None, true, "*"),
            (Field::Attr, Some("dev"), true, "1:3"),
        ])?,
    ];
    let found = find(&rules, &Subsystems::new(["*"]))?;
    let about = |rule: &str| found.notes.iter().find(|note| note.rule == rule);
    for rule in [
        r#"SUBSYSTEM=="no-such-bus""#,
        r#"SUBSYSTEM=="no-such-bus", KERNEL=="*", ATTR{dev}=="1:3""#,
    ] {
        let note = about(rule).ok_or("no note")?;
        assert_eq!(note.reason, "no no-such-bus device on this machine");
    }
    Ok(())
}
