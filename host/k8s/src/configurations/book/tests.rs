use std::time::Duration;

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

fn mk_book(objects: impl IntoIterator<Item = DynamicObject>) -> Book {
    let mut book = Book::default();
    book.begin();
    for object in objects {
        book.list(object);
    }
    book.finish();
    book
}

fn set(book: &Book) -> ConfigurationSet {
    book.set(
        &BTreeSet::new(),
        &Found::default(),
        &read(),
        &ConfigurationSet::default(),
    )
}

/// Reservations, of which there are none.
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
    let set = set(&mk_book([mk_object("a", "u", &spec)]));
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
        let set = set(&mk_book([
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
        assert!(!problem.message.contains("keeps serving"), "{problem}");
    }
}

#[test]
fn a_name_that_leaves_no_room_for_instances_is_a_problem() {
    let set = set(&mk_book([mk_object(&"a".repeat(237), "u", &good())]));
    assert_eq!(names(&set), [""; 0]);
    assert_eq!(set.problems[0].path, "metadata.name");
}

#[test]
fn the_last_good_version_of_the_same_object_serves_on() {
    let bad = json!({"discoveryHandler": {"name": "udev"}, "capacity": 0});
    for relist in [false, true] {
        for (uid, expected) in [("u", vec!["a"]), ("other", vec![])] {
            let mut book = mk_book([mk_object("a", "u", &good())]);
            let object = mk_object("a", uid, &bad);
            if relist {
                book.begin();
                book.list(object);
                book.finish();
            } else {
                book.apply(object);
            }
            let set = set(&book);
            assert_eq!(names(&set), expected);
            let message = &set.problems[0].message;
            assert_eq!(message.contains("keeps serving"), uid == "u", "{message}");
        }
    }
}

#[test]
fn a_bad_version_that_is_being_deleted_creates_nothing() {
    let mut book = mk_book([mk_object("a", "u", &good())]);
    let mut object = mk_object("a", "u", &json!({}));
    object.metadata.deletion_timestamp = object.metadata.creation_timestamp.clone();
    book.apply(object);
    let set = set(&book);
    assert!(
        set.accepted
            .values()
            .all(|served| served.configuration.deleting)
    );
    assert_eq!(names(&set), ["a"]);
}

#[test]
fn only_a_whole_list_says_that_an_object_is_gone() {
    let mut book = mk_book([mk_object("a", "u", &good()), mk_object("b", "v", &good())]);
    book.begin();
    book.list(mk_object("b", "v", &good()));
    assert_eq!(names(&set(&book)), ["a", "b"]);
    // That list failed, and the next one is whole.
    book.begin();
    book.list(mk_object("c", "w", &good()));
    book.finish();
    assert_eq!(names(&set(&book)), ["c"]);
    book.delete(&mk_object("c", "w", &good()));
    assert_eq!(names(&set(&book)), [""; 0]);
    let empty = Book::default();
    assert!(!set(&empty).complete);
}

#[test]
fn beyond_the_most_those_that_serve_stay_and_one_that_goes_makes_room() {
    let numbers = 0..MAX_CONFIGURATIONS + 2;
    let mut book = mk_book(numbers.map(|n| mk_object(&format!("c{n:05}"), "u", &good())));
    let told = set(&book);
    assert_eq!(told.accepted.len(), MAX_CONFIGURATIONS);
    let message = told.problems[0].to_string();
    assert!(
        message.contains("there are 2 beyond") && message.contains("site/c02001"),
        "{message}"
    );
    book.apply(mk_object("a", "u", &good()));
    assert!(!names(&set(&book)).contains(&"a"));
    assert!(!book.delete(&mk_object("a", "u", &good())));
    assert!(book.delete(&mk_object("c00000", "u", &good())));
}

#[test]
fn while_a_value_is_being_read_what_served_before_serves() {
    let spec = json!({"discoveryHandler": {"name": "udev", "discoveryProperties": [
        {"name": "p", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]}});
    let nothing = BTreeSet::new();
    let mut book = mk_book([mk_object("a", "u", &good())]);
    let before = set(&book);
    book.apply(mk_object("a", "u", &spec));
    book.apply(mk_object("new", "v", &spec));
    let references: Vec<_> = book.references(&nothing).collect();
    assert_eq!((references.len(), references[0].namespace), (2, "site"));
    let pending = book.set(&nothing, &Found::default(), &read(), &before);
    assert!(pending.complete);
    assert_eq!(pending.accepted, before.accepted);
    // At the start nothing is said until all was read.
    let first = set(&book);
    assert!(!first.complete && first.accepted.is_empty());
}

#[test]
fn what_does_not_change_stays_the_very_same() {
    let mut book = mk_book([mk_object("a", "u", &good()), mk_object("b", "v", &good())]);
    let before = set(&book);
    book.apply(mk_object(
        "b",
        "v",
        &json!({"discoveryHandler": {"name": "onvif"}}),
    ));
    let after = book.set(&BTreeSet::new(), &Found::default(), &read(), &before);
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
    let book = mk_book([mk_object("a", "u", &good())]);
    for (is_known, problem) in [(false, None), (true, None), (true, Some("no right"))] {
        let names = NameSet {
            is_known,
            problem: problem.map(str::to_owned),
            ..NameSet::default()
        };
        let nothing = ConfigurationSet::default();
        let set = book.set(&BTreeSet::new(), &Found::default(), &names, &nothing);
        assert_eq!(set.complete, is_known);
        assert_eq!(set.accepted.len(), usize::from(is_known));
        let told = set.problems.first().map(ToString::to_string);
        let expected = problem.map(|problem| format!("ResourceNames: {problem}"));
        assert_eq!(told, expected);
    }
}
