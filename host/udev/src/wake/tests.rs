use std::collections::BTreeMap;
use std::time::Duration;

use super::*;
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

fn wakes(rule: &Rule, event: &Event) -> bool {
    rule.wakes_on(event, &Subsystems::new(["*"]), &|| true)
}

/// Columns: a rule of one term, an action, the settle time, expected wake.
type Row<'a> = (
    (Field, &'a str, bool, &'a str),
    &'a str,
    Option<Duration>,
    bool,
);

#[test]
fn an_event_wakes_where_it_may_matter() -> Result<(), InvalidRule> {
    use Field::{
        Attr, Attrs, Devpath, Driver, Drivers, Env, Kernel, Kernels, Subsystem, Subsystems, Tag,
    };
    const CAP: &str = "ID_V4L_CAPABILITIES";
    let kernel = Some(Duration::from_secs(1));
    let table: [Row<'_>; 30] = [
        ((Kernel, "", true, "video*"), "add", None, true),
        ((Kernel, "", true, "tty*"), "add", None, false),
        ((Kernel, "", true, "tty*"), "remove", None, false),
        ((Kernel, "", true, "tty*"), "move", None, true),
        ((Kernel, "", false, "video*"), "add", None, false),
        ((Subsystem, "", true, "usb"), "move", None, false),
        ((Devpath, "", true, "*/video4linux/*"), "remove", None, true),
        ((Devpath, "", true, "*/tty/*"), "remove", None, false),
        // The event does not contain these.
        ((Attr, "name", true, "Other"), "add", None, true),
        ((Attr, "name", false, "Other"), "remove", None, true),
        ((Attrs, "idVendor", true, "1234"), "change", None, true),
        ((Driver, "", true, "vfio-pci"), "bind", None, true),
        ((Drivers, "", true, "vfio-pci"), "add", None, true),
        ((Tag, "", true, "uaccess"), "add", None, true),
        // An event of udevd has all properties, one of the kernel does not.
        ((Env, CAP, true, "*:capture:*"), "add", None, true),
        ((Env, CAP, true, ":"), "add", None, false),
        ((Env, CAP, true, ":"), "remove", None, false),
        ((Env, CAP, true, ":"), "change", None, true),
        ((Env, "ID_MODEL", true, "C270"), "add", None, false),
        ((Env, "ID_MODEL", true, "C270"), "add", kernel, true),
        ((Env, "ID_MODEL", false, "C270"), "remove", kernel, true),
        // The path has the names of the ancestors, but not their subsystems.
        ((Kernels, "", true, "1-1"), "add", None, true),
        ((Kernels, "", true, "2-1"), "add", None, false),
        ((Kernels, "", true, "1-1"), "remove", None, true),
        ((Kernels, "", true, "2-1"), "remove", None, false),
        ((Kernels, "", false, "2-1"), "remove", None, true),
        ((Kernels, "", false, "1-1"), "remove", None, true),
        ((Subsystems, "", true, "usb"), "remove", None, true),
        ((Subsystems, "", true, "block"), "change", None, true),
        // A regular expression is not compared.
        ((Kernels, "", true, "tty.+"), "add", None, true),
    ];
    for (term, action, settle, expected) in table {
        let rule = mk_rule(&[term])?;
        let event = mk_event(action, settle, &[(CAP, ":capture:")]);
        assert_eq!(
            wakes(&rule, &event),
            expected,
            "{rule} on {action}, settles {settle:?}"
        );
    }
    Ok(())
}

#[test]
fn all_terms_decide() -> Result<(), InvalidRule> {
    let rule = mk_rule(&[
        (Field::Attrs, "idVendor", true, "046d"),
        (Field::Kernel, "", true, "audio*"),
    ])?;
    for action in ["add", "change", "remove"] {
        assert!(!wakes(&rule, &mk_event(action, None, &[])));
    }
    Ok(())
}

#[test]
fn terms_on_ancestors_wake_if_all_may_hold_at_one_of_them() -> Result<(), InvalidRule> {
    use Field::{Attrs, Drivers, Kernels, Subsystems};
    let on = |kernel| (Kernels, "", true, kernel);
    let usb = (Subsystems, "", true, "usb");
    let vendor = (Attrs, "idVendor", true, "046d");
    let table = [
        (vec![on("1-1"), usb, vendor], true),
        (vec![on("video0"), usb], false),
        (vec![on("2-1"), vendor], false),
        (vec![on("1-1:*"), (Drivers, "", true, "x")], true),
    ];
    for (terms, expected) in table {
        let rule = mk_rule(&terms)?;
        for action in ["add", "change", "remove"] {
            let woken = wakes(&rule, &mk_event(action, None, &[]));
            assert_eq!(woken, expected, "{rule} on {action}");
        }
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
fn what_there_is_no_time_to_compare_is_taken_as_fitting() -> Result<(), InvalidRule> {
    let event = mk_event("remove", None, &[]);
    let all = Subsystems::new(["*"]);
    let rule = mk_rule(&[(Field::Kernel, "", true, "audio*")])?;
    assert!(!rule.wakes_on(&event, &all, &|| true));
    assert!(rule.wakes_on(&event, &all, &|| false));
    // Events of devices that may not be seen never wake.
    assert!(!rule.wakes_on(&event, &Subsystems::new(["usb"]), &|| false));
    Ok(())
}
