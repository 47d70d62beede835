use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leafhost_core::ports::{InstanceSet, InstanceStore as _};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::instances::KubeInstances;
use crate::stub::{Answer, Stub, failure, list};

#[tokio::test]
async fn watches_are_interrupted_until_the_api_server_has_answered() {
    let (requests, silent) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let stub = Stub::start(move |_| {
        if requests.fetch_add(1, Ordering::Relaxed) < 2 {
            return failure(500, "broken");
        }
        let (sender, events) = mpsc::unbounded_channel();
        silent.lock().unwrap().push(sender);
        Answer::Events(events)
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("instances.json");
    let store = KubeInstances::watch(&stub.client, "node-a", memory);
    let mut set = store.instances();
    set.wait_for(|set| set.interrupted.is_some()).await.unwrap();
    while stub.requests("") < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(set.borrow().interrupted.is_some());
}

/// A local Instance of `node-a`.
fn instance(version: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": "a-1", "namespace": "n", "uid": "u", "resourceVersion": version, "labels": labels},
        "spec": {"configurationName": "a", "nodes": ["node-a"]},
    })
}

/// A store that was told that its only Instance is gone, with an API server that says of it what `found` says when it is asked so many
/// times.
async fn told_of_deletion(
    found: impl Fn(usize) -> Answer + Send + Sync + 'static,
) -> (Stub, KubeInstances, tempfile::TempDir) {
    let (asked, silent) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let stub = Stub::start(move |request| {
        let is_local = request.contains("leafhost.dev%2Fnode");
        if request.starts_with("GET /apis/akri.sh/v0/namespaces/n/instances/a-1") {
            return found(asked.fetch_add(1, Ordering::Relaxed));
        }
        let right = instance("5", &json!({"leafhost.dev/node": "node-a"}));
        if !request.contains("watch=true") {
            return list("5", if is_local { std::slice::from_ref(&right) } else { &[] });
        }
        let (sender, events) = mpsc::unbounded_channel();
        if is_local && request.contains("resourceVersion=5") {
            let gone = json!({"type": "DELETED", "object": instance("6", &json!({"leafhost.dev/node": "node-a"}))});
            sender.send(gone).unwrap();
        }
        silent.lock().unwrap().push(sender);
        Answer::Events(events)
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("instances.json");
    let store = KubeInstances::watch(&stub.client, "node-a", memory);
    (stub, store, folder)
}

async fn until(store: &KubeInstances, is_so: impl Fn(&InstanceSet) -> bool) {
    let mut set = store.instances();
    let waited = set.wait_for(|set| set.complete && is_so(set));
    let waited = tokio::time::timeout(Duration::from_secs(20), waited);
    waited.await.unwrap().unwrap();
}

#[tokio::test]
async fn an_instance_without_its_label_is_still_there() {
    let (stub, store, _folder) =
        told_of_deletion(|_| Answer::Object(200, instance("6", &json!({})))).await;
    until(&store, |set| {
        let mut all = set.instances.values();
        all.any(|one| one.metadata.labels.is_empty() && one.metadata.uid == "u")
    })
    .await;
    assert_eq!(
        (stub.requests("/instances/a-1"), stub.requests("POST")),
        (1, 0)
    );
}

#[tokio::test]
async fn an_instance_is_there_until_the_api_server_says_that_it_is_not() {
    let (stub, store, _folder) = told_of_deletion(|asked| match asked {
        0 | 1 => failure(503, "busy"),
        _ => Answer::Object(404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": "a-1"}})),
    })
    .await;
    until(&store, |set| set.instances.len() == 1).await;
    until(&store, |set| set.instances.is_empty()).await;
    assert_eq!(stub.requests("/instances/a-1"), 3);
}
