//! Fuzzes udev rules and device names: the host accepts each rule that the handler parses, and matches as udev does.
//!
//! The input is a rule, a kernel name, a devpath, a subsystem and a property, separated by NUL.
#![no_main]

use std::collections::BTreeMap;
use std::time::Duration;

use handler_udev::rules;
use leafhost_fuzz::glob::{Dialect, fits};
use leafhost_fuzz::within;
use leafhost_sdk::udev as sdk;
use leafhost_udev::{Event, Field, MAX_TERMS, MAX_VALUE, Rule, Subsystems, Term};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let mut parts = text.split('\0');
    let mut part = || parts.next().unwrap_or_default();
    let terms = match within(Duration::from_secs(1), || rules::parse(part())) {
        Ok(terms) => terms,
        Err(mistake) => {
            let mistake = mistake.to_string();
            assert!(mistake.starts_with("character "), "{mistake}");
            return;
        }
    };
    assert!((1..=MAX_TERMS).contains(&terms.len()));
    assert!(terms.iter().all(|term| term.value.len() <= MAX_VALUE));
    let terms: Vec<Term> = terms.into_iter().map(term).collect();
    let rule = within(Duration::from_secs(1), || Rule::new(terms.clone()));
    let rule = rule.expect("the host takes what the handler reads");
    for term in terms.iter().filter(|term| term.is_regex()) {
        assert!(
            rules::looks_like_regex(&term.value)
                && !rules::looks_like_port(&term.value, term.key.as_deref()),
            "{term} is remarked on"
        );
    }
    let again = rules::parse(&rule.to_string()).expect("a rule as it is written down");
    let again: Vec<Term> = again.into_iter().map(term).collect();
    assert_eq!(again, terms);
    let kernel = part().replace('/', "!");
    let event = Event {
        action: "remove".to_owned(),
        devpath: format!("/devices/{}/{kernel}", part()),
        subsystem: Some(part().to_owned()),
        devnode: None,
        properties: BTreeMap::new(),
        settle: None,
    };
    let value = part();
    within(Duration::from_secs(2), || {
        let all = terms.into_iter().map(|term| check(&term, &event, value));
        // Terms that cannot be decided from an event wake.
        let woken = all.filter(|woken| !woken).count() == 0;
        let mut event = event.clone();
        event.properties = rule
            .terms()
            .filter_map(|term| Some((term.key.clone()?, value.to_owned())))
            .collect();
        let wakes = rule.wakes_on(&event, &Subsystems::new(["*"]), &|| true);
        // Terms on ancestors may each match a different ancestor.
        let plural = rule.terms().filter(|term| term.field.is_plural()).count();
        assert!(
            if plural > 1 {
                woken || !wakes
            } else {
                woken == wakes
            },
            "{rule}"
        );
    });
});

/// Returns true if an event wakes a term. Asserts that matches of a known text agree with the reference matcher.
fn check(term: &Term, event: &Event, value: &str) -> bool {
    let text = match term.field {
        Field::Kernel => event
            .devpath
            .rsplit('/')
            .next()
            .map(|name| name.replace('!', "/")),
        Field::Devpath => Some(event.devpath.clone()),
        Field::Subsystem => event.subsystem.clone(),
        Field::Env => Some(value.to_owned()),
        _ => None,
    };
    let mut event = event.clone();
    event
        .properties
        .extend(term.key.clone().map(|key| (key, value.to_owned())));
    let wakes = |term: Term| {
        let rule = Rule::new(vec![term]).expect("a term of a rule");
        rule.wakes_on(&event, &Subsystems::new(["*"]), &|| true)
    };
    let woken = wakes(term.clone());
    if let Some(text) = text {
        let expected = alternatives(&term.value, &text);
        let seen = Subsystems::new([term.value.as_str()]).allows(Some(&text));
        let differs = wakes(Term {
            negated: true,
            ..term.clone()
        });
        assert_eq!(differs, !seen, "{term} on {text:?}");
        if let Some(expected) = expected {
            assert_eq!(seen, expected, "{term} on {text:?}");
        }
        if !term.negated {
            assert!(woken || !seen, "{term} on {text:?}");
        }
    }
    woken
}

/// Returns true if one of the globs between bars matches, and `None` if none does but some are undecided.
fn alternatives(value: &str, text: &str) -> Option<bool> {
    let all: Vec<_> = value
        .split('|')
        .map(|glob| fits(dialect(value), glob, text))
        .collect();
    if all.contains(&Some(true)) {
        return Some(true);
    }
    (!all.contains(&None)).then_some(false)
}

/// Returns the dialect of a value; without `*`, `?` and `[` it is compared literally.
fn dialect(value: &str) -> Dialect {
    if value.contains(['*', '?', '[']) {
        Dialect::Udev
    } else {
        Dialect::Paths
    }
}

fn term(term: sdk::Term) -> Term {
    let field = match term.field {
        sdk::Field::Attr => Field::Attr,
        sdk::Field::Attrs => Field::Attrs,
        sdk::Field::Devpath => Field::Devpath,
        sdk::Field::Driver => Field::Driver,
        sdk::Field::Drivers => Field::Drivers,
        sdk::Field::Kernel => Field::Kernel,
        sdk::Field::Kernels => Field::Kernels,
        sdk::Field::Env => Field::Env,
        sdk::Field::Subsystem => Field::Subsystem,
        sdk::Field::Subsystems => Field::Subsystems,
        sdk::Field::Tag => Field::Tag,
        sdk::Field::Tags => Field::Tags,
    };
    Term {
        field,
        key: term.key,
        negated: term.negated,
        value: term.value,
    }
}
