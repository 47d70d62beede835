//! The handler on a host in memory: `cargo test` needs no agent and no hardware.

use {{crate_name}}::{{TypeName}};
use leafhost_sdk::testing::{Call, FakeHost, description_problems, validate};

#[test]
fn a_host_takes_the_description() {
    assert_eq!(description_problems::<{{TypeName}}>(), Vec::<String>::new());
}

#[test]
fn the_example_has_devices() {
    let example = include_str!("../details.yaml");
    let found = Call::<{{TypeName}}>::new(example).run(&FakeHost::new()).unwrap();
    assert!(!found.devices().is_empty());
}

#[test]
fn a_wrong_field_is_named() {
    let problems = validate::<{{TypeName}}>("names: [[a]]");
    assert_eq!(problems[0].path, "names[0]");
}
