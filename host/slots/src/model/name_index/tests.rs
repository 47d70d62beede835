use jiff::Timestamp;
use leafhost_core::resource_names::Reservation;
use leafhost_fakes::key;

use super::*;
use crate::fixture::{Fixture, NODE, instance};

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-02-01T00:00:00Z";

/// Returns the Configurations `default/echo`, with the Instance `echo-a19705`, and `second/<name>`.
fn fixture(name: &str, ages: Option<(&str, &str)>) -> Fixture {
    let instances = [instance("echo", "a19705", 1, &[])];
    let mut fixture = Fixture::new(&[("echo", &instances)]);
    fixture.configure("second", name);
    if let Some((first, second)) = ages {
        fixture.created(&key("echo"), first);
        let other = ConfigurationKey::new("second", name).unwrap();
        fixture.created(&other, second);
    }
    fixture
}

fn reserve(fixture: &mut Fixture, name: &str, namespace: &str, second: i64) {
    let reservation = Reservation {
        namespace: namespace.to_owned(),
        created: Timestamp::from_second(second).ok(),
    };
    Arc::make_mut(&mut fixture.devices.names).insert(name.to_owned(), reservation);
}

/// Returns the namespaces that own the Configuration's and the Instance's resource, and the problems.
fn shown(fixture: &Fixture, name: &str) -> (Option<String>, Option<String>, Vec<String>) {
    let name_index = fixture.name_index();
    let configuration = name_index.configurations.get(name);
    let instance = name_index.instances.get("echo-a19705");
    let problems = name_index.problems.iter().map(ToString::to_string);
    (
        configuration.map(|key| key.namespace().to_owned()),
        instance.map(|key| key.namespace.clone()),
        problems.collect(),
    )
}

#[test]
fn a_configuration_that_is_named_like_anothers_instance_takes_nothing_from_it() {
    for (ages, reservation) in [
        (Some((EARLY, LATE)), None),
        (Some((EARLY, LATE)), Some("default")),
        // The Configuration existed first, and was deleted and applied again.
        (Some((LATE, EARLY)), Some("default")),
    ] {
        let mut fixture = fixture("echo-a19705", ages);
        if let Some(namespace) = reservation {
            reserve(&mut fixture, "echo", namespace, 1);
        }
        let (configuration, instance, problems) = shown(&fixture, "echo-a19705");
        assert_eq!(
            (configuration, instance.as_deref()),
            (None, Some("default"))
        );
        assert!(
            problems[0].starts_with(
                "second/echo-a19705 has the name of an Instance of default/echo, which had it first"
            ),
            "{problems:?}"
        );
        assert_eq!(problems.len(), 1);
    }
}

#[test]
fn an_instance_whose_name_another_namespace_had_first_is_not_offered() {
    let mut fixture = fixture("echo-a19705", None);
    reserve(&mut fixture, "echo-a19705", "second", 1);
    reserve(&mut fixture, "echo", "default", 2);
    let (configuration, instance, problems) = shown(&fixture, "echo-a19705");
    assert_eq!((configuration.as_deref(), instance), (Some("second"), None));
    let told =
        "Instance default/echo-a19705 has the name of second/echo-a19705, which goes before it";
    assert!(problems[0].starts_with(told), "{problems:?}");
    assert!(fixture.name_index().configurations.contains_key("echo"));
}

#[test]
fn a_reserved_name_is_offered_for_its_namespace_alone_also_while_that_has_no_configuration() {
    for (namespace, owner) in [
        ("default", Some("default")),
        ("second", Some("second")),
        ("third", None),
    ] {
        let mut fixture = fixture("echo", Some((EARLY, LATE)));
        reserve(&mut fixture, "echo", namespace, 1);
        let (configuration, instance, problems) = shown(&fixture, "echo");
        assert_eq!(configuration.as_deref(), owner);
        let expected = (namespace == "default").then_some("default");
        assert_eq!(instance.as_deref(), expected, "{namespace}");
        let told = format!("has the name of {namespace}/echo, which had it first");
        assert!(
            problems.iter().any(|problem| problem.contains(&told)),
            "{problems:?}"
        );
    }
}

#[test]
fn the_owners_stay_while_the_same_instances_concern_the_node_in_the_same_way() {
    let [a, b, c] = ["a", "b", "c"].map(|hash| instance("cams", hash, 2, &[]));
    let set = |instances: &[&Instance]| {
        let instances = instances
            .iter()
            .map(|&one| (one.key(), Arc::new(one.clone())));
        InstanceSet::read(instances.collect())
    };
    let before = set(&[&a, &b]);
    let altered = |alter: fn(&mut Instance)| {
        let mut a = a.clone();
        alter(&mut a);
        set(&[&a, &b])
    };
    let used = |one: &mut Instance| {
        let usage = &mut one.spec.device_usage;
        usage.insert("cams-a-0".into(), "node-b".into());
    };
    for (what, after, same) in [
        ("nothing", before.clone(), true),
        ("another object", altered(|_| {}), true),
        ("a slot of another node", altered(used), true),
        ("its nodes", altered(|one| one.spec.nodes.clear()), false),
        (
            "its age",
            altered(|one| one.metadata.creation_timestamp = None),
            false,
        ),
        (
            "its Configuration",
            altered(|one| one.spec.configuration_name = "others".into()),
            false,
        ),
        ("another Instance", set(&[&a, &c]), false),
        ("one more", set(&[&a, &b, &c]), false),
        ("one less", set(&[&a]), false),
    ] {
        assert_eq!(has_same_names(NODE, &before, &after), same, "{what}");
    }
}
