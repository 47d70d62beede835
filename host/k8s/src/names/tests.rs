use serde_json::json;

use super::*;

fn object(
    name: &str,
    spec: &serde_json::Value,
    unused: Option<&str>,
) -> DeserializeGuard<ResourceName> {
    serde_json::from_value(json!({
        "apiVersion": "leafhost.dev/v1alpha1", "kind": "ResourceName",
        "metadata": {"name": name, "uid": "u", "resourceVersion": "3", "creationTimestamp": "2026-01-02T03:04:05Z",
            "annotations": unused.map(|unused| json!({UNUSED_SINCE: unused}))},
        "spec": spec,
    }))
    .unwrap()
}

fn failure(code: Option<u16>) -> Failure {
    Failure::answered(code, "so it is")
}

#[test]
fn objects_are_read_and_one_that_no_controller_wrote_is_none() {
    let mut reservations = NameReservations::default();
    reservations.take(Ok(Event::Init));
    for (name, spec, unused) in [
        (
            "echo",
            json!({"namespace": "a"}),
            Some("2026-01-03T00:00:00Z"),
        ),
        ("cams", json!({"namespace": "a"}), Some("soon")),
        ("odd", json!({"namespace": 7}), None),
    ] {
        reservations.take(Ok(Event::InitApply(object(name, &spec, unused))));
    }
    assert!(!reservations.set().is_known);
    reservations.take(Ok(Event::InitDone(5)));
    let set = reservations.set();
    assert!(set.is_known && set.is_read);
    let noted = |name: &str| set.records[name].unused_since.map(|time| time.to_string());
    assert_eq!(noted("echo").as_deref(), Some("2026-01-03T00:00:00Z"));
    assert_eq!(noted("cams"), None);
    assert_eq!(set.records.len(), 2);
    let created = set.names.get("echo").unwrap().created;
    assert_eq!(created.map(Timestamp::as_second), Some(1_767_323_045));
    let odd = object("echo", &json!({}), None);
    reservations.take(Ok(Event::Apply(odd)));
    assert_eq!(reservations.set().names.get("echo"), None);
}

#[test]
fn what_was_read_stays_when_the_watch_fails_and_without_a_definition_nothing_is_waited_for() {
    let remembered: ResourceNames = [("echo", "a")]
        .map(|(name, namespace)| {
            let reservation = Reservation {
                namespace: namespace.into(),
                created: None,
            };
            (name.to_owned(), reservation)
        })
        .into_iter()
        .collect();
    for (code, failures, is_known) in [
        (Some(404), 1, true),
        (Some(403), 1, true),
        (Some(503), 1, false),
        (None, TRIES - 1, false),
        (None, TRIES, true),
    ] {
        let mut reservations = NameReservations {
            remembered: Arc::new(remembered.clone()),
            ..NameReservations::default()
        };
        for _ in 0..failures {
            reservations.take(Err(failure(code)));
        }
        let set = reservations.set();
        assert_eq!((set.is_known, set.is_read), (is_known, false), "{code:?}");
        assert_eq!(set.names.get("echo").unwrap().namespace, "a");
        assert!(set.problem.unwrap().contains("so it is"));
        reservations.take(Ok(Event::Init));
        reservations.take(Ok(Event::InitDone(5)));
        reservations.take(Ok(Event::Resumed));
        let set = reservations.set();
        assert_eq!((set.problem, set.names.get("echo")), (None, None));
    }
}
