use std::sync::Mutex;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::timeout;

use leafhost_core::properties::Lookup;

use super::*;
use crate::tests::stub::{Answer, Stub, failure, list};

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
    let objects: Vec<Object> = objects.into_iter().collect();
    let references = objects.iter().map(|object| {
        let reference = Reference {
            kind: object.kind,
            namespace: &object.namespace,
            name: &object.name,
            key: "password",
        };
        (object.namespace.as_str(), reference)
    });
    Wanted::of(references, &Wanted::default())
}

fn looked_up(found: &Found, name: &str, key: &str) -> Lookup {
    found.lookup(&Reference {
        kind: ValueKind::Secret,
        namespace: "site",
        name,
        key,
    })
}

#[test]
fn there_is_one_place_for_a_kind_and_namespace() {
    let wanted = mk_wanted([
        secret("a"),
        secret("b"),
        mk_object(ValueKind::Secret, "other", "a"),
        mk_object(ValueKind::ConfigMap, "site", "a"),
    ]);
    let found = targets(&wanted);
    let shown: Vec<_> = found
        .iter()
        .map(|target| {
            (
                target.kind.name(),
                target.namespace.as_str(),
                target.names.len(),
                target.is_watched,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("Secret", "site", 2, true),
            ("Secret", "other", 1, true),
            ("ConfigMap", "site", 1, true)
        ]
    );
}

#[test]
fn the_places_of_the_first_objects_are_watched_whatever_their_names() {
    let many = (0..MAX_WATCHES).map(|n| mk_object(ValueKind::Secret, &format!("a{n:04}"), "a"));
    let first = mk_object(ValueKind::Secret, "zzz", "a");
    let found = targets(&mk_wanted([first].into_iter().chain(many)));
    let is_watched = |target: &&WatchTarget| target.is_watched;
    assert_eq!(found.iter().filter(is_watched).count(), MAX_WATCHES);
    assert!(
        found
            .iter()
            .any(|target| target.namespace == "zzz" && target.is_watched)
    );
}

/// State of the stub API server.
#[derive(Default)]
struct Server {
    password: &'static str,
    /// Rights of the agent.
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
    let mut found = values.found.clone();
    let wait = found.wait_for(|found| is_so(looked_up(found, "a", "password")));
    let found = timeout(Duration::from_mins(1), wait).await;
    drop(found.unwrap_or_else(|_| panic!("never: {what}")).unwrap());
}

fn is_value(lookup: &Lookup, value: &[u8]) -> bool {
    *lookup == Lookup::Value(value.into())
}

#[tokio::test]
async fn a_rotated_secret_is_read_again_and_only_the_named_one_is_watched() {
    let (server, mut stub) = start(Server {
        password: "b25l",
        may_watch: true,
        may_get: true,
        ..Server::default()
    })
    .await;
    let values = Values::new(stub.client.clone(), &mut stub.tasks);
    values.wanted.send_replace(mk_wanted([secret("a")]));
    until(&values, "the first value", |found| is_value(&found, b"one")).await;
    let other = looked_up(&values.found.borrow(), "a", "other");
    assert!(
        matches!(other, Lookup::Missing(_)),
        "a key that nobody wants is not held"
    );
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
    let (server, mut stub) = start(Server {
        password: "b25l",
        ..Server::default()
    })
    .await;
    let values = Values::new(stub.client.clone(), &mut stub.tasks);
    values.wanted.send_replace(mk_wanted([secret("a")]));
    until(&values, "the refusal", |found| {
        matches!(found, Lookup::Unavailable(why) if why.contains("allow its service account"))
    })
    .await;
    server.lock().unwrap().may_get = true;
    until(&values, "the value", |found| is_value(&found, b"one")).await;
    values.wanted.send_replace(Wanted::default());
    until(
        &values,
        "nothing",
        |found| matches!(found, Lookup::Unavailable(why) if why.contains("is being read")),
    )
    .await;
}
