//! Fuzzes files in the folder of Configurations: any text is checked at a bounded cost.
#![no_main]

use std::collections::BTreeSet;
use std::time::Duration;

use leafhost_core::configuration::{Configuration, MAX_CAPACITY, MAX_DETAILS};
use leafhost_core::names::{ConfigurationKey, is_env_name, is_handler_name};
use leafhost_files::check_file;
use leafhost_fuzz::within;
use libfuzzer_sys::fuzz_target;

/// Document that is valid whatever stands before it.
const GOOD: &str = "\n---\napiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {name: last, namespace: last}\nspec:\n  discoveryHandler: {name: udev}\n";

fuzz_target!(|data: &[u8]| {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let checked = within(Duration::from_secs(3), || check_file("f", text));
    let problems = checked.problems;
    let mut keys = BTreeSet::new();
    for located in &checked.documents {
        let configuration = &located.configuration;
        check(configuration);
        assert!(keys.insert(configuration.key.clone()), "each name once");
    }
    assert!(problems.len() <= 101);
    let lines = text.lines().count() + 1;
    for problem in &problems {
        assert!(!problem.message.is_empty());
        assert!(
            problem.line.is_none_or(|line| (1..=lines).contains(&line)),
            "{problem:?}"
        );
    }
    // A broken document does not affect others, up to the size limit of a file.
    if text.len() <= 16 << 10 {
        let with_good = check_file("f", &format!("{text}{GOOD}")).documents;
        let last = with_good.last().expect("the good document");
        let key = &last.configuration.key;
        assert_eq!(key.name(), "last");
        keys.insert(key.clone());
        assert_eq!(with_good.len(), keys.len());
    }
});

fn check(configuration: &Configuration) {
    let Configuration {
        key,
        uid,
        handler,
        details,
        properties,
        capacity,
        broker_properties,
        grace,
        resources: _,
        backend: _,
        evicts: _,
        generation: _,
        created: _,
        deleting: _,
    } = configuration;
    assert_eq!(
        ConfigurationKey::new(key.namespace(), key.name()).as_ref(),
        Ok(key)
    );
    assert_eq!(uid.len(), 36);
    assert!(is_handler_name(handler));
    assert!(details.len() <= MAX_DETAILS);
    assert!((1..=MAX_CAPACITY).contains(capacity));
    assert!(grace.is_none_or(|grace| grace <= Duration::from_hours(24)));
    let names: BTreeSet<_> = properties.iter().map(|property| &property.name).collect();
    assert_eq!(names.len(), properties.len());
    assert!(
        names
            .into_iter()
            .chain(broker_properties.keys())
            .all(|name| is_env_name(name))
    );
    assert!(
        broker_properties
            .values()
            .all(|value| !value.contains('\0'))
    );
    assert!(
        properties
            .iter()
            .all(|p| p.value.is_none() || p.value_from.is_none())
    );
}
