use std::sync::Arc;

use leafhost_core::resource_names::Reservation;
use leafhost_core::status_store::ConfigurationState;

use super::*;

const GRACE: Duration = Duration::from_hours(1);

fn at(second: i64) -> Timestamp {
    Timestamp::from_second(second).unwrap()
}

/// Builds Configurations `namespace/name` with their creation time; a name that ends with `-` is being deleted.
fn states(all: &[(&str, i64)]) -> ConfigurationStates {
    let state = |(text, created): &(&str, i64)| {
        let (namespace, name) = text.trim_end_matches('-').split_once('/').unwrap();
        let state = ConfigurationState {
            created: Some(at(*created)),
            is_deleting: text.ends_with('-'),
            ..ConfigurationState::default()
        };
        let key = ConfigurationKey::new(namespace, name).unwrap();
        (key, Arc::new(state))
    };
    ConfigurationStates {
        complete: true,
        configurations: all.iter().map(state).collect(),
    }
}

/// Builds reservations `namespace/name` with their creation time and the time since when they are unused.
fn set(all: &[(&str, i64, Option<i64>)]) -> NameSet {
    let record = |(text, created, unused): &(&str, i64, Option<i64>)| {
        let (namespace, name) = text.split_once('/').unwrap();
        let record = NameRecord {
            reservation: Reservation {
                namespace: namespace.to_owned(),
                created: Some(at(*created)),
            },
            uid: "u".into(),
            resource_version: "1".into(),
            unused_since: unused.map(at),
        };
        (name.to_owned(), record)
    };
    NameSet::read(all.iter().map(record).collect())
}

/// Returns the plan of second 10,000 as text.
fn planned(states: &ConfigurationStates, set: &NameSet) -> Vec<String> {
    let plan = plan(states, set, GRACE, at(10_000));
    let told = plan.changes.iter().map(|change| {
        let (name, namespace) = (&change.name, &change.namespace);
        match change.action {
            Action::Reserve => format!("+{namespace}/{name}"),
            Action::Note { is_used } => format!("{name}={is_used}"),
            Action::Free => format!("-{name}"),
        }
    });
    let next = plan.next.map(|next| format!("@{}", next.as_second()));
    told.chain(next).collect()
}

#[test]
fn the_oldest_configuration_of_each_name_gets_it_and_keeps_it() {
    for (configurations, reservations, expected) in [
        // First start: nothing is reserved yet.
        (
            &[("b/echo", 1), ("a/echo", 2), ("a/cams", 3)][..],
            &[][..],
            &["+b/echo", "+a/cams"][..],
        ),
        (&[("b/echo", 1), ("a/echo", 2)], &[("a/echo", 5, None)], &[]),
        // A Configuration that is being deleted gets no name, and keeps the one it has.
        (&[("b/echo-", 1), ("a/echo", 2)], &[], &["+a/echo"]),
        (
            &[("b/echo-", 1), ("a/echo", 2)],
            &[("b/echo", 5, None)],
            &[],
        ),
        // Names of Instances.
        (&[("a/echo", 1), ("b/echo-a19705", 2)], &[], &["+a/echo"]),
        (
            &[("a/echo", 2), ("b/echo-a19705", 1)],
            &[],
            &["+b/echo-a19705", "+a/echo"],
        ),
        (
            &[("a/echo", 2), ("b/echo-a19705", 1)],
            &[("a/echo", 5, None)],
            &[],
        ),
        (
            &[("a/echo", 1), ("a/echo-a19705", 2)],
            &[("a/echo", 5, None)],
            &["+a/echo-a19705"],
        ),
    ] {
        let found = planned(&states(configurations), &set(reservations));
        assert_eq!(found, expected, "{configurations:?} {reservations:?}");
    }
}

#[test]
fn a_name_that_nobody_uses_is_noted_once_and_freed_after_the_grace() {
    for (configurations, unused, expected) in [
        (&[][..], None, &["echo=false"][..]),
        (&[], Some(9_000), &["@12600"]),
        (&[], Some(6_400), &["-echo"]),
        // Another namespace waits for the name.
        (&[("b/echo", 1)], Some(9_000), &["@12600"]),
        (&[("b/echo", 1)], Some(6_400), &["-echo"]),
        // The Configuration was applied again.
        (&[("a/echo", 9_999)], Some(9_000), &["echo=true"]),
        (&[("a/echo-", 1)], Some(6_400), &["echo=true"]),
        (&[("a/echo", 1)], None, &[]),
    ] {
        let found = planned(&states(configurations), &set(&[("a/echo", 5, unused)]));
        assert_eq!(found, expected, "{configurations:?} {unused:?}");
    }
}

#[test]
fn a_namespace_that_has_the_most_names_gives_up_the_one_unused_for_longest() {
    let names: Vec<String> = (0..MOST).map(|number| format!("a/n{number:05}")).collect();
    let all: Vec<_> = names.iter().map(|name| (name.as_str(), 1)).collect();
    let reserved = |unused: &[Option<i64>]| {
        let unused = unused.iter().copied().chain(std::iter::repeat(None));
        let all = names.iter().zip(unused);
        let all: Vec<_> = all
            .map(|(name, unused)| (name.as_str(), 5, unused))
            .collect();
        set(&all)
    };
    let configurations =
        |used: &[(&str, i64)]| states(&[used, &[("a/late", 7), ("b/other", 8)]].concat());
    let full = planned(&configurations(&all), &reserved(&[]));
    assert_eq!(full, ["+b/other"]);
    let some = planned(
        &configurations(&all[2..]),
        &reserved(&[Some(9_001), Some(9_000)]),
    );
    assert_eq!(some, ["-n00001", "+b/other", "@12600"]);
}
