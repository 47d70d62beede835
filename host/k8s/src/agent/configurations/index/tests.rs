use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::{Value, json};

use super::*;

fn mk_object(name: &str, uid: &str, spec: &Value) -> DynamicObject {
    serde_json::from_value(json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": "site", "uid": uid, "generation": 3,
            "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": {"leafhost.dev/grace": "30s"},
            "managedFields": [{"manager": "kubectl", "operation": "Apply"}]},
        "spec": spec,
    }))
    .unwrap()
}

fn good() -> Value {
    json!({"discoveryHandler": {"name": "udev"}})
}

fn mk_index(objects: impl IntoIterator<Item = DynamicObject>) -> ConfigurationIndex {
    let mut index = ConfigurationIndex::default();
    index.begin();
    for object in objects {
        index.list(object);
    }
    index.finish();
    index
}

fn set(index: &ConfigurationIndex) -> ConfigurationSet {
    set_after(index, &ConfigurationSet::default())
}

/// Returns the set that serves before any value was read.
fn set_after(index: &ConfigurationIndex, before: &ConfigurationSet) -> ConfigurationSet {
    let namespaces = BTreeSet::new();
    let wanted = Wanted::of(index.references(&namespaces), &Wanted::default());
    index.set(&namespaces, (&wanted, &Found::default()), &read(), before)
}

/// Returns a known, empty set of reservations.
fn read() -> NameSet {
    NameSet::read(BTreeMap::new())
}

fn names(set: &ConfigurationSet) -> Vec<&str> {
    set.accepted.keys().map(ConfigurationKey::name).collect()
}

#[test]
fn an_object_of_akri_is_read_with_what_the_api_server_adds() {
    let spec = json!({"discoveryHandler": {"name": "udev", "discoveryDetails": "a: 1"}, "capacity": 5,
        "brokerSpec": {"brokerPodSpec": {"containers": []}}, "instanceServiceSpec": {},
        "brokerProperties": {"A": "1"}});
    let set = set(&mk_index([mk_object("a", "u", &spec)]));
    let configuration = &set.accepted.values().next().unwrap().configuration;
    assert_eq!(configuration.key.to_string(), "site/a");
    assert_eq!(
        (configuration.uid.as_str(), configuration.generation),
        ("u", Some(3))
    );
    assert_eq!(
        configuration.created.as_deref(),
        Some("2026-01-02T03:04:05Z")
    );
    assert_eq!(configuration.grace, Some(Duration::from_secs(30)));
    assert_eq!((configuration.capacity, configuration.deleting), (5, false));
    assert!(set.complete && set.problems.is_empty() && set.warnings.is_empty());
}

#[test]
fn a_bad_object_is_named_with_its_field_and_the_others_serve() {
    let handler = json!({"name": "udev"});
    for (spec, path) in [
        (
            json!({"discoveryHandler": handler, "capacity": 0}),
            "spec.capacity",
        ),
        (
            json!({"discoveryHandler": handler, "capacity": "5"}),
            "spec.capacity",
        ),
        (json!({"discoveryHandler": {}}), "spec.discoveryHandler"),
        (json!({}), "spec"),
        (json!(null), "spec"),
        (json!("x"), "spec"),
        (
            json!({"discoveryHandler": {"name": "udev", "discoveryProperties": [{"name": "p", "valueFrom": {}}]}}),
            "spec.discoveryHandler.discoveryProperties[0].valueFrom",
        ),
    ] {
        let set = set(&mk_index([
            mk_object("a", "u", &good()),
            mk_object("bad", "v", &spec),
        ]));
        assert_eq!(names(&set), ["a"], "{spec}");
        let problem = &set.problems[0];
        assert_eq!(
            (problem.source.as_str(), problem.path.as_str()),
            ("Configuration site/bad", path)
        );
        assert_eq!(
            problem.configuration,
            ConfigurationKey::new("site", "bad").ok()
        );
        assert!(!problem.message.contains("stays in use"), "{problem}");
    }
}

#[test]
fn a_name_that_leaves_no_room_for_instances_is_a_problem() {
    let set = set(&mk_index([mk_object(&"a".repeat(237), "u", &good())]));
    assert_eq!(names(&set), [""; 0]);
    assert_eq!(set.problems[0].path, "metadata.name");
}

#[test]
fn the_last_good_version_of_the_same_object_serves_on() {
    let bad = json!({"discoveryHandler": {"name": "udev"}, "capacity": 0});
    for relist in [false, true] {
        for (uid, expected) in [("u", vec!["a"]), ("other", vec![])] {
            let mut index = mk_index([mk_object("a", "u", &good())]);
            let object = mk_object("a", uid, &bad);
            if relist {
                index.begin();
                index.list(object);
                index.finish();
            } else {
                index.apply(object);
            }
            let set = set(&index);
            assert_eq!(names(&set), expected);
            let message = &set.problems[0].message;
            assert_eq!(message.contains("stays in use"), uid == "u", "{message}");
        }
    }
}

#[test]
fn a_bad_version_that_is_being_deleted_creates_nothing() {
    let mut index = mk_index([mk_object("a", "u", &good())]);
    let mut object = mk_object("a", "u", &json!({}));
    object.metadata.deletion_timestamp = object.metadata.creation_timestamp.clone();
    index.apply(object);
    let set = set(&index);
    assert!(
        set.accepted
            .values()
            .all(|served| served.configuration.deleting)
    );
    assert_eq!(names(&set), ["a"]);
}

#[test]
fn only_a_whole_list_says_that_an_object_is_gone() {
    let mut index = mk_index([mk_object("a", "u", &good()), mk_object("b", "v", &good())]);
    index.begin();
    index.list(mk_object("b", "v", &good()));
    assert_eq!(names(&set(&index)), ["a", "b"]);
    // That list failed, and the next one is complete.
    index.begin();
    index.list(mk_object("c", "w", &good()));
    index.finish();
    assert_eq!(names(&set(&index)), ["c"]);
    index.delete(&mk_object("c", "w", &good()));
    assert_eq!(names(&set(&index)), [""; 0]);
    let empty = ConfigurationIndex::default();
    assert!(!set(&empty).complete);
}

fn mk_numbered(namespace: &str, number: usize) -> DynamicObject {
    let name = format!("c{number:05}");
    let mut object = mk_object(&name, &format!("{namespace}-{name}"), &good());
    object.metadata.namespace = Some(namespace.into());
    object
}

#[test]
fn a_namespace_with_too_many_takes_no_place_of_others_also_over_a_restart() {
    let many = || (0..2_010).map(|n| mk_numbered("aaa", n));
    let others = || (0..20).map(|n| mk_numbered(&format!("tenant-{n}"), n));
    let index = mk_index(many().chain(others()));
    let first = set(&index);
    assert_eq!(first.accepted.len(), MAX_OF_NAMESPACE + 20);
    let mut restarted = ConfigurationIndex::default();
    restarted.remember(index.worth_keeping().unwrap());
    restarted.begin();
    // The objects that were not taken before are the oldest now.
    let older = (0..2_010).map(|n| mk_numbered("aab", n));
    for mut object in older {
        let older = "2020-01-02T03:04:05Z".parse().unwrap();
        object.metadata.creation_timestamp = Some(Time(older));
        restarted.list(object);
    }
    for object in many().chain(others()) {
        restarted.list(object);
    }
    restarted.finish();
    let second = set(&restarted);
    assert!(
        first
            .accepted
            .keys()
            .all(|key| second.accepted.contains_key(key))
    );
    assert_eq!(second.accepted.len(), 2 * MAX_OF_NAMESPACE + 20);
}

#[test]
fn one_that_is_left_out_says_so_with_the_handler_that_it_names() {
    let mut index = mk_index((0..MAX_OF_NAMESPACE).map(|n| mk_numbered("aaa", n)));
    index.apply(mk_numbered("aaa", 9_000));
    let told = set(&index);
    let key = ConfigurationKey::new("aaa", "c09000").unwrap();
    assert!(!told.accepted.contains_key(&key));
    let left_out = &told.left_out[&key];
    assert_eq!(
        (left_out.handler.as_str(), left_out.generation),
        ("udev", Some(3))
    );
    assert_eq!(left_out.cap, "500 Configurations of a namespace");
    let message = told.problems[0].to_string();
    assert!(
        message.contains("1 are not used") && message.contains("aaa/c09000"),
        "{message}"
    );
    index.delete(&mk_numbered("aaa", 0));
    assert!(index.has_room());
    index.apply(mk_numbered("aaa", 9_000));
    assert!(set(&index).accepted.contains_key(&key) && set(&index).left_out.is_empty());
}

#[test]
fn what_an_agent_does_not_use_of_an_object_is_not_held() {
    let mut spec = good();
    spec["brokerSpec"] = json!({"brokerPodSpec": {"containers": []}});
    let mut object = mk_object("a", "u", &spec);
    object.data["status"] = json!({"ready": "1/1"});
    let annotations = object.metadata.annotations.get_or_insert_default();
    annotations.insert(
        "kubectl.kubernetes.io/last-applied-configuration".into(),
        "x".into(),
    );
    let kept = mk_index([object]).worth_keeping().unwrap().remove(0);
    assert_eq!(kept.data, json!({"spec": good()}));
    assert_eq!(kept.metadata.managed_fields, None);
    let annotations = kept.metadata.annotations.unwrap();
    assert_eq!(
        annotations.keys().collect::<Vec<_>>(),
        ["leafhost.dev/grace"]
    );
}

#[test]
fn values_of_a_namespace_that_names_too_many_stop_only_its_own_configurations() {
    let mk = |namespace: &str, number: usize| {
        let mut object = mk_numbered(namespace, number);
        object.data["spec"]["discoveryHandler"]["discoveryProperties"] = json!([
            {"name": "p", "valueFrom": {"secretKeyRef": {"name": format!("s{number}"), "key": "k", "optional": true}}}]);
        object
    };
    let index = mk_index((0..400).map(|n| mk("aaa", n)).chain([mk("zzz", 0)]));
    let namespaces = BTreeSet::new();
    let wanted = Wanted::of(index.references(&namespaces), &Wanted::default());
    let of_zzz = wanted
        .objects()
        .filter(|(object, _)| object.namespace == "zzz");
    assert_eq!((wanted.objects().count(), of_zzz.count()), (251, 1));
    let told = index.set(
        &namespaces,
        (&wanted, &Found::default()),
        &read(),
        &ConfigurationSet::default(),
    );
    let problem = &told.problems[0];
    assert!(
        problem.message.contains("beyond the 250 Secrets"),
        "{problem}"
    );
    assert_eq!(problem.configuration.as_ref().unwrap().namespace(), "aaa");
    assert_eq!(told.problems.len(), 150);
}

#[test]
fn while_a_value_is_being_read_what_served_before_serves() {
    let spec = json!({"discoveryHandler": {"name": "udev", "discoveryProperties": [
        {"name": "p", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}});
    let nothing = BTreeSet::new();
    let mut index = mk_index([mk_object("a", "u", &good())]);
    let before = set(&index);
    index.apply(mk_object("a", "u", &spec));
    index.apply(mk_object("new", "v", &spec));
    let references: Vec<_> = index.references(&nothing).collect();
    assert_eq!((references.len(), references[0].1.namespace), (2, "site"));
    let pending = set_after(&index, &before);
    assert!(pending.complete);
    assert_eq!(pending.accepted, before.accepted);
    // At the start, the set is empty until all values were read.
    let first = set(&index);
    assert!(!first.complete && first.accepted.is_empty());
}

#[test]
fn what_does_not_change_stays_the_very_same() {
    let mut index = mk_index([mk_object("a", "u", &good()), mk_object("b", "v", &good())]);
    let before = set(&index);
    index.apply(mk_object(
        "b",
        "v",
        &json!({"discoveryHandler": {"name": "onvif"}}),
    ));
    let after = set_after(&index, &before);
    let same: Vec<_> = before
        .accepted
        .values()
        .zip(after.accepted.values())
        .map(|(before, after)| Arc::ptr_eq(before, after))
        .collect();
    assert_eq!(same, [true, false]);
}

#[test]
fn nothing_is_complete_before_it_is_known_who_has_which_name() {
    let index = mk_index([mk_object("a", "u", &good())]);
    for (is_known, problem) in [(false, None), (true, None), (true, Some("no right"))] {
        let names = NameSet {
            is_known,
            problem: problem.map(str::to_owned),
            ..NameSet::default()
        };
        let nothing = ConfigurationSet::default();
        let values = (&Wanted::default(), &Found::default());
        let set = index.set(&BTreeSet::new(), values, &names, &nothing);
        assert_eq!(set.complete, is_known);
        assert_eq!(set.accepted.len(), usize::from(is_known));
        let told = set.problems.first().map(ToString::to_string);
        let expected = problem.map(|problem| format!("ResourceNames: {problem}"));
        assert_eq!(told, expected);
    }
}
