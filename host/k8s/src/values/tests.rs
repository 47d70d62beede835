use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use super::*;
use crate::stub::{Answer, Stub, failure, list};

fn mk_object(kind: ValueKind, namespace: &str, name: &str) -> Object {
    Object {
        kind,
        namespace: namespace.into(),
        name: name.into(),
    }
}

fn secret(name: &str) -> Object {
    mk_object(ValueKind::Secret, "site", name)
}

fn mk_wanted(objects: impl IntoIterator<Item = Object>) -> Wanted {
    let key = BTreeSet::from(["password".to_owned()]);
    objects
        .into_iter()
        .map(|object| (object, key.clone()))
        .collect()
}

fn mk_keys(value: &[u8]) -> Outcome {
    Outcome::Known(Known::Keys([("password".to_owned(), value.into())].into()))
}

fn looked_up(found: &Found, name: &str) -> Lookup {
    found.lookup(&Reference {
        kind: ValueKind::Secret,
        namespace: "site",
        name,
        key: "password",
    })
}

#[test]
fn there_is_one_place_for_a_namespace_and_a_bound_for_watches_and_objects() {
    let wanted = mk_wanted([
        secret("a"),
        secret("b"),
        mk_object(ValueKind::Secret, "other", "a"),
        mk_object(ValueKind::ConfigMap, "site", "a"),
    ]);
    let (found, beyond) = places(&wanted);
    let shown: Vec<_> = found
        .iter()
        .map(|place| {
            (
                place.kind.name(),
                place.namespace.as_str(),
                place.names.len(),
                place.is_watched,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("Secret", "other", 1, true),
            ("Secret", "site", 2, true),
            ("ConfigMap", "site", 1, true)
        ]
    );
    assert!(beyond.is_empty());
    let many = (0..=MAX_OBJECTS).map(|n| mk_object(ValueKind::Secret, &format!("n{n:04}"), "a"));
    let (found, beyond) = places(&mk_wanted(many));
    assert_eq!(
        found.iter().filter(|place| place.is_watched).count(),
        MAX_WATCHES
    );
    assert_eq!((found.len(), beyond.len()), (MAX_OBJECTS, 1));
}

#[test]
fn what_cannot_be_reached_stays_as_it_was_read_and_what_is_forbidden_does_not() {
    let failed = || Outcome::Failed("away".into());
    let keys: BTreeSet<_> = ["password".to_owned()].into();
    let mut found = Found::default();
    found.insert(secret("a"), keys.clone(), failed());
    assert_eq!(looked_up(&found, "a"), Lookup::Unavailable("away".into()));
    found.insert(secret("a"), keys.clone(), mk_keys(b"x"));
    found.insert(secret("a"), keys.clone(), failed());
    assert_eq!(
        looked_up(&found, "a"),
        Lookup::Value(b"x".as_slice().into())
    );
    let forbidden = Outcome::Known(Known::Unreadable("forbidden".into()));
    found.insert(secret("a"), keys.clone(), forbidden);
    assert_eq!(
        looked_up(&found, "a"),
        Lookup::Unavailable("forbidden".into())
    );
    found.insert(secret("a"), keys.clone(), Outcome::Known(Known::Missing));
    let missing = Lookup::Missing("Secret site/a does not exist; create it".into());
    assert_eq!(looked_up(&found, "a"), missing);
    found.insert(secret("a"), keys, Outcome::Known(Known::Keys(Keys::new())));
    let missing = Lookup::Missing("Secret site/a has no key \"password\"; add it".into());
    assert_eq!(looked_up(&found, "a"), missing);
}

#[test]
fn all_values_together_are_bounded() {
    let keys: BTreeSet<_> = ["password".to_owned()].into();
    let mut found = Found::default();
    for n in 0..MAX_BYTES / (1 << 20) {
        found.insert(
            secret(&n.to_string()),
            keys.clone(),
            mk_keys(&vec![0; 1 << 20]),
        );
    }
    let last = (MAX_BYTES / (1 << 20) - 1).to_string();
    let Lookup::Unavailable(why) = looked_up(&found, &last) else {
        panic!("{last} is held");
    };
    assert!(why.contains("beyond the 32 MiB"), "{why}");
    // The same again takes no more.
    found.insert(secret("0"), keys, mk_keys(&vec![1; 1 << 20]));
    assert!(matches!(looked_up(&found, "0"), Lookup::Value(_)));
}

/// What the API server has.
#[derive(Default)]
struct Server {
    password: &'static str,
    /// What may be done.
    may_watch: bool,
    may_get: bool,
    watches: Vec<mpsc::UnboundedSender<Value>>,
}

impl Server {
    fn answer(&mut self, request: &str) -> Answer {
        if request.contains("/secrets/") {
            if !self.may_get {
                return failure(403, "no");
            }
            return Answer::Object(
                200,
                json!({"metadata": {"name": "a", "namespace": "site"},
                        "data": {"password": self.password, "other": "eA=="}}),
            );
        }
        if !self.may_watch {
            return failure(403, "no");
        }
        if request.contains("watch=true") {
            let (sender, events) = mpsc::unbounded_channel();
            self.watches.push(sender);
            return Answer::Events(events);
        }
        list("7", &[])
    }
}

async fn start(server: Server) -> (Arc<Mutex<Server>>, Stub) {
    let server = Arc::new(Mutex::new(server));
    let answering = Arc::clone(&server);
    let stub = Stub::start(move |request| answering.lock().unwrap().answer(request)).await;
    (server, stub)
}

async fn until(values: &Values, what: &str, is_so: impl Fn(Lookup) -> bool) {
    let mut found = values.found();
    let wait = found.wait_for(|found| is_so(looked_up(found, "a")));
    let found = timeout(Duration::from_mins(1), wait).await;
    drop(found.unwrap_or_else(|_| panic!("never: {what}")).unwrap());
}

fn is_value(lookup: &Lookup, value: &[u8]) -> bool {
    *lookup == Lookup::Value(value.into())
}

#[tokio::test]
async fn a_rotated_secret_is_read_again_and_only_the_named_one_is_watched() {
    let (server, stub) = start(Server {
        password: "b25l",
        may_watch: true,
        may_get: true,
        ..Server::default()
    })
    .await;
    let values = Values::new(stub.client.clone());
    values.want(mk_wanted([secret("a")]));
    until(&values, "the first value", |found| is_value(&found, b"one")).await;
    let keys = match &values.found().borrow().0[&secret("a")] {
        (_, Known::Keys(keys)) => keys.len(),
        other => panic!("{other:?}"),
    };
    assert_eq!(keys, 1, "a key that nobody wants is not held");
    timeout(Duration::from_secs(10), async {
        while server.lock().unwrap().watches.is_empty() {
            tokio::task::yield_now().await;
        }
    })
    .await
    .unwrap();
    assert_eq!(
        stub.requests("fieldSelector=metadata.name%3Da"),
        stub.requests("/secrets?")
    );
    {
        let mut server = server.lock().unwrap();
        server.password = "dHdv";
        let object = json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
            "metadata": {"name": "a", "namespace": "site", "resourceVersion": "8"}});
        let event = json!({"type": "MODIFIED", "object": object});
        server.watches[0].send(event).unwrap();
    }
    until(&values, "the second value", |found| {
        is_value(&found, b"two")
    })
    .await;
}

#[tokio::test]
async fn where_it_may_not_be_watched_it_is_read_and_a_right_that_is_granted_later_counts() {
    let (server, stub) = start(Server {
        password: "b25l",
        ..Server::default()
    })
    .await;
    let values = Values::new(stub.client.clone());
    values.want(mk_wanted([secret("a")]));
    until(&values, "the refusal", |found| {
        matches!(found, Lookup::Unavailable(why) if why.contains("allow its service account"))
    })
    .await;
    server.lock().unwrap().may_get = true;
    until(&values, "the value", |found| is_value(&found, b"one")).await;
    values.want(Wanted::new());
    until(
        &values,
        "nothing",
        |found| matches!(found, Lookup::Unavailable(why) if why.contains("is being read")),
    )
    .await;
}
