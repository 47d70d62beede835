use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
use crate::facts::Written;
use crate::rule::{InvalidRule, Term};

const VIDEO: &str = "/devices/pci0000:00/0000:00:14.0/usb1/1-1/1-1:1.0/video4linux/video0";

fn mk_rule(terms: &[(Field, &str, bool, &str)]) -> Result<Rule, InvalidRule> {
    Rule::new(
        terms
            .iter()
            .map(|(field, key, equal, value)| Term {
                field: *field,
                key: field.has_key().then(|| (*key).to_owned()),
                negated: !equal,
                value: (*value).to_owned(),
            })
            .collect(),
    )
}

fn mk_event(action: &str, settle: Option<Duration>, properties: &[(&str, &str)]) -> Event {
    Event {
        action: action.to_owned(),
        devpath: VIDEO.to_owned(),
        subsystem: Some("video4linux".to_owned()),
        properties: properties
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect::<BTreeMap<_, _>>(),
        ..Event::lost(settle)
    }
}

/// The camera while it is plugged in.
fn mk_chain() -> [Written; 2] {
    [
        Written {
            devpath: VIDEO,
            subsystem: Some("video4linux"),
            attributes: vec![("name", "TestCam")],
            ..Written::default()
        },
        Written {
            devpath: "/devices/pci0000:00/0000:00:14.0/usb1/1-1",
            subsystem: Some("usb"),
            driver: Some("usb"),
            attributes: vec![("idVendor", "046d")],
            ..Written::default()
        },
    ]
}

fn wakes_while(plugged: bool, rule: &Rule, event: &Event) -> bool {
    let [own, parent] = mk_chain();
    let live = || plugged.then(|| -> Live<'_> { (&own, vec![&parent]) });
    wakes(rule, event, &live, &|| true)
}

/// A rule of one term, an action, how long it settles, whether the camera is plugged in: whether that wakes.
type Row<'a> = (
    (Field, &'a str, bool, &'a str),
    &'a str,
    Option<Duration>,
    bool,
    bool,
);

#[test]
fn an_event_wakes_rules_it_may_affect() -> Result<(), InvalidRule> {
    use Field::{
        Attr, Attrs, Devpath, Driver, Drivers, Env, Kernel, Kernels, Subsystem, Subsystems, Tag,
    };
    let kernel = Some(Duration::from_secs(1));
    let cap = [("ID_V4L_CAPABILITIES", ":capture:")];
    let table: [Row<'_>; 37] = [
        ((Kernel, "", true, "video*"), "add", None, true, true),
        ((Kernel, "", true, "tty*"), "add", None, true, false),
        ((Kernel, "", true, "tty*"), "remove", None, false, false),
        ((Kernel, "", true, "tty*"), "move", None, true, true),
        ((Kernel, "", false, "video*"), "add", None, true, false),
        ((Subsystem, "", true, "usb"), "move", None, true, false),
        (
            (Devpath, "", true, "*/video4linux/*"),
            "remove",
            None,
            false,
            true,
        ),
        // Attributes are looked up while they are there.
        ((Attr, "name", true, "TestCam"), "add", None, true, true),
        ((Attr, "name", true, "Other"), "add", None, true, false),
        ((Attr, "name", false, "TestCam"), "add", None, true, false),
        ((Attrs, "idVendor", true, "046d"), "add", None, true, true),
        ((Attrs, "idVendor", true, "1234"), "add", None, true, false),
        ((Attr, "idVendor", true, "046d"), "add", None, true, false),
        // … and hold when they are gone or may just have changed.
        ((Attr, "name", true, "Other"), "remove", None, false, true),
        ((Attr, "name", true, "Other"), "change", None, true, true),
        ((Attr, "name", true, "Other"), "add", None, false, true),
        ((Driver, "", true, "vfio-pci"), "bind", None, true, true),
        ((Drivers, "", true, "vfio-pci"), "add", None, true, false),
        // udevd's word is final, the kernel's is not.
        (
            (Env, "ID_V4L_CAPABILITIES", true, "*:capture:*"),
            "add",
            None,
            true,
            true,
        ),
        (
            (Env, "ID_V4L_CAPABILITIES", true, ":"),
            "add",
            None,
            true,
            false,
        ),
        (
            (Env, "ID_V4L_CAPABILITIES", true, ":"),
            "remove",
            None,
            false,
            false,
        ),
        (
            (Env, "ID_V4L_CAPABILITIES", true, ":"),
            "change",
            None,
            true,
            true,
        ),
        ((Env, "ID_MODEL", true, "C270"), "add", None, true, false),
        ((Env, "ID_MODEL", true, "C270"), "add", kernel, true, true),
        (
            (Env, "ID_MODEL", false, "C270"),
            "remove",
            kernel,
            false,
            true,
        ),
        ((Tag, "", true, "uaccess"), "add", kernel, true, true),
        ((Tag, "", true, "uaccess"), "add", None, true, false),
        // Names above: from sysfs, and from the path when that has gone.
        ((Kernels, "", true, "1-1"), "add", None, true, true),
        ((Kernels, "", true, "2-1"), "add", None, true, false),
        ((Kernels, "", true, "1-1"), "remove", None, false, true),
        ((Kernels, "", true, "2-1"), "remove", None, false, false),
        ((Kernels, "", false, "2-1"), "remove", None, false, true),
        ((Kernels, "", false, "1-1"), "remove", None, false, true),
        // What is absent fits no term.
        ((Attr, "none", false, "x"), "add", None, true, false),
        ((Attr, "none", false, "x"), "change", None, true, true),
        ((Subsystems, "", true, "usb"), "remove", None, false, true),
        ((Subsystems, "", true, "block"), "change", None, true, false),
    ];
    for (term, action, settle, plugged, expected) in table {
        let rule = mk_rule(&[term])?;
        let event = mk_event(action, settle, &cap);
        assert_eq!(
            wakes_while(plugged, &rule, &event),
            expected,
            "{rule} on {action}, settles {settle:?}, plugged in {plugged}"
        );
    }
    Ok(())
}

#[test]
fn all_terms_must_possibly_hold() -> Result<(), InvalidRule> {
    let rule = mk_rule(&[
        (Field::Attrs, "idVendor", true, "046d"),
        (Field::Kernel, "", true, "audio*"),
    ])?;
    for action in ["add", "change", "remove"] {
        assert!(!wakes_while(true, &rule, &mk_event(action, None, &[])));
    }
    Ok(())
}

#[test]
fn terms_on_ancestors_wake_if_all_may_hold_at_one_of_them() -> Result<(), InvalidRule> {
    use Field::{Attrs, Drivers, Kernels, Subsystems};
    let on = |kernel| (Kernels, "", true, kernel);
    let usb = (Subsystems, "", true, "usb");
    let vendor = |negated: bool| (Attrs, "idVendor", !negated, "046d");
    let table = [
        (vec![on("1-1"), usb, vendor(false)], "add", true, true),
        (vec![on("video0"), usb], "add", true, false),
        (vec![on("1-1"), vendor(true)], "add", true, false),
        (vec![on("video0"), vendor(true)], "add", true, false),
        // What may just have changed, and what is gone but for its path.
        (vec![on("1-1"), vendor(true)], "change", true, true),
        (vec![on("2-1"), vendor(true)], "change", true, false),
        (vec![on("1-1"), vendor(true)], "remove", false, true),
        (vec![on("2-1"), vendor(false)], "remove", false, false),
        (
            vec![on("1-1:*"), (Drivers, "", true, "x")],
            "remove",
            false,
            true,
        ),
    ];
    for (terms, action, plugged, expected) in table {
        let rule = mk_rule(&terms)?;
        let woken = wakes_while(plugged, &rule, &mk_event(action, None, &[]));
        assert_eq!(woken, expected, "{rule} on {action}");
    }
    Ok(())
}

#[test]
fn lost_events_wake_every_rule_and_unseen_subsystems_none() -> Result<(), InvalidRule> {
    let rule = mk_rule(&[(Field::Kernel, "", true, "video*")])?;
    let none = Subsystems::default();
    assert!(rule.wakes_on(&Event::lost(None), &none, &|| true));
    let event = mk_event("remove", None, &[]);
    assert!(!rule.wakes_on(&event, &none, &|| true));
    assert!(!rule.wakes_on(&event, &Subsystems::new(["usb"]), &|| true));
    assert!(rule.wakes_on(&event, &Subsystems::new(["video*"]), &|| true));
    Ok(())
}

#[test]
fn an_existing_device_is_looked_up() -> Result<(), InvalidRule> {
    if !std::path::Path::new("/sys/devices/virtual/mem/null/dev").exists() {
        eprintln!("skipped: /sys is not mounted here");
        return Ok(());
    }
    let event = Event {
        action: "add".to_owned(),
        devpath: "/devices/virtual/mem/null".to_owned(),
        subsystem: Some("mem".to_owned()),
        ..Event::lost(None)
    };
    let allowed = Subsystems::new(["mem"]);
    for (value, expected) in [("1:3", true), ("1:5", false)] {
        let rule = mk_rule(&[(Field::Attr, "dev", true, value)])?;
        assert_eq!(
            rule.wakes_on(&event, &allowed, &|| true),
            expected,
            "{value}"
        );
    }
    Ok(())
}

#[test]
fn terms_without_time_to_compare_count_as_matching() -> Result<(), InvalidRule> {
    let event = mk_event("remove", None, &[]);
    let all = Subsystems::new(["*"]);
    let rule = mk_rule(&[(Field::Kernel, "", true, "audio*")])?;
    assert!(!rule.wakes_on(&event, &all, &|| true));
    assert!(rule.wakes_on(&event, &all, &|| false));
    // What may not be seen wakes nobody all the same.
    assert!(!rule.wakes_on(&event, &Subsystems::new(["usb"]), &|| false));
    Ok(())
}
