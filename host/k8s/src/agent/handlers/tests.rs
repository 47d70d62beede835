use std::sync::Mutex;

use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::tests::stub::{Answer, Stub, failure, list};

const LIMIT: Duration = Duration::from_secs(20);

/// Returns a ConfigMap `a` with the component `a.wasm` of these bytes, in base64.
fn mk_map(uid: &str, version: &str, bytes: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {
            "name": "a", "namespace": "leafhost", "uid": uid, "resourceVersion": version,
            "creationTimestamp": "2026-01-01T00:00:00Z", "labels": {"leafhost.dev/handlers": "true"},
        },
        "data": {"a.grants.yaml": "udev:"},
        "binaryData": {"a.wasm.gz": bytes},
    })
}

/// Object of the stub API server, and the events of its watch.
struct Cluster {
    object: Mutex<Value>,
    denied: Mutex<Option<u16>>,
    events: Mutex<Option<mpsc::UnboundedReceiver<Value>>>,
}

/// Creates a cluster with one object, and the sender of its events.
fn mk_cluster() -> (Arc<Cluster>, mpsc::UnboundedSender<Value>) {
    let (sender, events) = mpsc::unbounded_channel();
    let cluster = Arc::new(Cluster {
        object: Mutex::new(mk_map("u1", "5", "b25l")),
        denied: Mutex::default(),
        events: Mutex::new(Some(events)),
    });
    (cluster, sender)
}

async fn mk_stub(cluster: &Arc<Cluster>) -> Stub {
    let cluster = Arc::clone(cluster);
    Stub::start(move |request| {
        if let Some(code) = *cluster.denied.lock().unwrap() {
            return failure(code, "no");
        }
        let object = cluster.object.lock().unwrap().clone();
        if request.contains("watch=true") {
            return match cluster.events.lock().unwrap().take() {
                Some(events) => Answer::Events(events),
                None => failure(500, "no second watch"),
            };
        }
        if request.contains("/configmaps/a") {
            return Answer::Object(200, object);
        }
        if request.contains("/nodes") {
            return list("5", &[]);
        }
        let version = object["metadata"]["resourceVersion"].as_str().unwrap();
        list(version, &[json!({"metadata": object["metadata"]})])
    })
    .await
}

async fn wait_for(
    handlers: &KubeHandlers,
    what: impl FnMut(&Arc<SourceSet>) -> bool,
) -> Arc<SourceSet> {
    let mut set = handlers.handlers();
    let found = tokio::time::timeout(LIMIT, set.wait_for(what))
        .await
        .unwrap()
        .unwrap();
    Arc::clone(&found)
}

fn read(handlers: &KubeHandlers, set: &SourceSet) -> (Vec<u8>, Option<String>) {
    let version = set.files["a.wasm"].as_ref().unwrap();
    let file = handlers.read("a.wasm", version).unwrap();
    (
        file.bytes.to_vec(),
        file.grants.map(|grants| grants.to_string()),
    )
}

#[tokio::test]
async fn a_component_is_fetched_once_for_each_state_and_not_again_after_a_restart() {
    let (cluster, events) = mk_cluster();
    let mut stub = mk_stub(&cluster).await;
    let dir = tempfile::tempdir().unwrap();
    let handlers = KubeHandlers::watch(
        &stub.client,
        "leafhost",
        dir.path().join("maps"),
        &mut stub.tasks,
    );
    let set = wait_for(&handlers, |set| set.complete).await;
    assert!(!set.partial && set.problems.is_empty(), "{set:?}");
    assert_eq!(
        read(&handlers, &set),
        (b"one".to_vec(), Some("udev:".into()))
    );
    assert_eq!(
        stub.requests("labelSelector=leafhost.dev%2Fhandlers%3Dtrue"),
        2
    );

    let next = mk_map("u1", "6", "dHdv");
    *cluster.object.lock().unwrap() = next.clone();
    events.send(json!({"type": "MODIFIED", "object": {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": next["metadata"]}})).unwrap();
    let old = set.files.clone();
    let set = wait_for(&handlers, |set| set.files != old).await;
    assert_eq!(read(&handlers, &set).0, b"two");
    assert_eq!(stub.requests("/configmaps/a"), 2);
    assert!(
        handlers
            .read("a.wasm", old["a.wasm"].as_ref().unwrap())
            .is_err()
    );
    drop((handlers, stub));

    let (events, receiver) = mpsc::unbounded_channel();
    *cluster.events.lock().unwrap() = Some(receiver);
    let mut stub = mk_stub(&cluster).await;
    let handlers = KubeHandlers::watch(
        &stub.client,
        "leafhost",
        dir.path().join("maps"),
        &mut stub.tasks,
    );
    let set = wait_for(&handlers, |set| set.complete && !set.partial).await;
    assert_eq!(read(&handlers, &set).0, b"two");
    assert_eq!(stub.requests("/configmaps/a"), 0);

    events.send(json!({"type": "DELETED", "object": {"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata", "metadata": next["metadata"]}})).unwrap();
    wait_for(&handlers, |set| set.files.is_empty()).await;
    assert_eq!(handlers.disk.all().count(), 0);
}

#[tokio::test]
async fn without_rights_what_was_fetched_before_serves_and_the_remedy_is_told() {
    let (cluster, _events) = mk_cluster();
    let mut stub = mk_stub(&cluster).await;
    let dir = tempfile::tempdir().unwrap();
    let first = KubeHandlers::watch(
        &stub.client,
        "leafhost",
        dir.path().to_owned(),
        &mut stub.tasks,
    );
    let known = wait_for(&first, |set| set.complete).await.files.clone();
    drop(std::mem::take(&mut stub.tasks));
    *cluster.denied.lock().unwrap() = Some(403);
    let handlers = KubeHandlers::watch(
        &stub.client,
        "leafhost",
        dir.path().to_owned(),
        &mut stub.tasks,
    );
    let set = wait_for(&handlers, |set| set.complete).await;
    assert_eq!((&set.files, set.partial), (&known, true));
    assert_eq!(read(&handlers, &set).0, b"one");
    let problem = set.problems[0].to_string();
    assert!(
        problem.contains("get, list and watch ConfigMaps"),
        "{problem}"
    );
}

#[tokio::test]
async fn an_api_server_that_only_refuses_the_object_is_left_alone_for_as_long_as_it_says() {
    let (cluster, _events) = mk_cluster();
    let object = cluster.object.lock().unwrap().clone();
    let silent = Mutex::new(Vec::new());
    let mut stub = Stub::start(move |request| {
        if request.contains("watch=true") {
            let (sender, events) = mpsc::unbounded_channel();
            silent.lock().unwrap().push(sender);
            return Answer::Events(events);
        }
        if request.contains("/configmaps/a") {
            return Answer::Object(
                429,
                json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 429,
                    "message": "too many requests", "details": {"retryAfterSeconds": 3600}}),
            );
        }
        list("5", &[json!({"metadata": object["metadata"]})])
    })
    .await;
    let dir = tempfile::tempdir().unwrap();
    let handlers = KubeHandlers::watch(
        &stub.client,
        "leafhost",
        dir.path().to_owned(),
        &mut stub.tasks,
    );
    let set = wait_for(&handlers, |set| set.complete).await;
    assert!(set.partial);
    assert!(
        set.problems
            .iter()
            .any(|one| one.source == "ConfigMap leafhost/a")
    );
    assert_eq!(stub.requests("/configmaps/a"), 1);
}

#[test]
fn a_large_cluster_takes_its_time() {
    for (nodes, millis) in [
        (1, 50),
        (2, 100),
        (20, 1000),
        (50, 1000),
        (500, 10_000),
        (u64::MAX, 60_000),
    ] {
        assert_eq!(spread(nodes), Duration::from_millis(millis), "{nodes}");
    }
}
