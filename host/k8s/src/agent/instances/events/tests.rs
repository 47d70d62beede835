use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use leafhost_core::instance::{Edit, Instance};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore as _, StoreError};
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::agent::instances::KubeInstances;
use crate::tests::stub::{Answer, Stub, failure, list};

#[tokio::test]
async fn watches_are_interrupted_until_the_api_server_has_answered() {
    let (requests, silent) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let mut stub = Stub::start(move |_| {
        if requests.fetch_add(1, Ordering::Relaxed) < 2 {
            return failure(500, "broken");
        }
        let (sender, events) = mpsc::unbounded_channel();
        silent.lock().unwrap().push(sender);
        Answer::Events(events)
    })
    .await;
    let (store, _folder) = watched(&mut stub);
    let mut set = store.instances();
    set.wait_for(|set| set.interrupted.is_some()).await.unwrap();
    while stub.requests("") < 4 {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(set.borrow().interrupted.is_some());
}

/// Returns a local Instance of `node-a`.
fn instance(version: &str, labels: &Value) -> Value {
    json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance",
        "metadata": {"name": "a-1", "namespace": "n", "uid": "u", "resourceVersion": version, "labels": labels},
        "spec": {"configurationName": "a", "nodes": ["node-a"]},
    })
}

/// Creates the store of `node-a`, which watches the stub.
fn watched(stub: &mut Stub) -> (KubeInstances, tempfile::TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("instances.json");
    let store = KubeInstances::watch(&stub.client, "node-a", memory, &mut stub.tasks);
    (store, folder)
}

/// Creates a store whose watch reports its only Instance as gone; the stub answers a read of it with `found`, which gets the number of
/// earlier reads.
async fn told_of_deletion(
    found: impl Fn(usize) -> Answer + Send + Sync + 'static,
) -> (Stub, KubeInstances, tempfile::TempDir) {
    let (asked, silent) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let mut stub = Stub::start(move |request| {
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
    let (store, folder) = watched(&mut stub);
    (stub, store, folder)
}

#[tokio::test]
async fn an_instance_that_the_watch_does_not_show_is_read() {
    let silent = Mutex::new(Vec::new());
    let mut stub = Stub::start(move |request| {
        let is_local = request.contains("leafhost.dev%2Fnode");
        if request.contains("watch=true") {
            let (sender, events) = mpsc::unbounded_channel();
            silent.lock().unwrap().push(sender);
            return Answer::Events(events);
        }
        let is_old = request.contains("resourceVersion=0");
        let instance = instance("6", &json!({"leafhost.dev/node": "node-a"}));
        let all = [instance];
        list("5", if is_local && !is_old { &all } else { &[] })
    })
    .await;
    let (store, _folder) = watched(&mut stub);
    until(&store, |set| set.instances.is_empty()).await;
    store.refresh().await.unwrap();
    assert_eq!(store.instances().borrow().instances.len(), 1);
}

/// Takes 50 s if the changes that arrive together are seen one after the other, with a pause between two.
#[tokio::test]
async fn a_thousand_changes_that_arrive_together_are_seen_together() {
    let silent = Mutex::new(Vec::new());
    let mut stub = Stub::start(move |request| {
        if !request.contains("watch=true") {
            return list("5", &[]);
        }
        let (sender, events) = mpsc::unbounded_channel();
        if request.contains("leafhost.dev%2Fnode") {
            let labels = json!({"leafhost.dev/node": "node-a"});
            for version in 6..1_006_u32 {
                let object = instance(&version.to_string(), &labels);
                let event = json!({"type": "MODIFIED", "object": object});
                sender.send(event).unwrap();
            }
        }
        silent.lock().unwrap().push(sender);
        Answer::Events(events)
    })
    .await;
    let (store, _folder) = watched(&mut stub);
    until(&store, |set| {
        let mut all = set.instances.values();
        all.any(|instance| instance.metadata.resource_version == "1005")
    })
    .await;
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

/// Returns a shared Instance of these nodes.
fn shared(version: u64, nodes: &[&str]) -> Value {
    let mut shared = instance(
        &version.to_string(),
        &json!({"leafhost.dev/shared": "true"}),
    );
    shared["spec"]["nodes"] = json!(nodes);
    shared["spec"]["shared"] = json!(true);
    shared
}

/// Creates a store whose watch of shared Instances shows `first` and then these events; the stub answers each read with "not found".
async fn notified(first: Value, events: Vec<Value>) -> (Stub, KubeInstances, tempfile::TempDir) {
    let silent = Mutex::new(Vec::new());
    let mut stub = Stub::start(move |request| {
        let is_shared = request.contains("leafhost.dev%2Fshared");
        if request.starts_with("GET /apis/akri.sh/v0/namespaces/n/instances/a-1") {
            return Answer::Object(404, json!({"kind": "Status", "code": 404, "reason": "NotFound", "details": {"name": "a-1"}}));
        }
        if !request.contains("watch=true") {
            return list("5", if is_shared { std::slice::from_ref(&first) } else { &[] });
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        if is_shared && request.contains("resourceVersion=5") {
            for event in &events {
                sender.send(event.clone()).unwrap();
            }
        }
        silent.lock().unwrap().push(sender);
        Answer::Events(receiver)
    })
    .await;
    let (store, folder) = watched(&mut stub);
    (stub, store, folder)
}

#[tokio::test]
async fn a_shared_instance_that_goes_is_asked_for_only_by_nodes_that_have_it() {
    for (nodes, asked) in [(&["node-b"][..], 0), (&["node-b", "node-a"], 1)] {
        let gone = json!({"type": "DELETED", "object": shared(6, nodes)});
        let (stub, store, _folder) = notified(shared(5, nodes), vec![gone]).await;
        until(&store, |set| set.instances.is_empty()).await;
        assert_eq!(stub.requests("/instances/a-1"), asked, "{nodes:?}");
    }
}

#[tokio::test]
async fn a_shared_instance_of_others_that_gets_its_label_back_is_there_again() {
    let nodes = ["node-b"];
    let gone = json!({"type": "DELETED", "object": shared(6, &nodes)});
    let back = json!({"type": "ADDED", "object": shared(7, &nodes)});
    let (stub, store, _folder) = notified(shared(5, &nodes), vec![gone, back]).await;
    until(&store, |set| {
        let mut all = set.instances.values();
        all.any(|one| one.metadata.resource_version == "7")
    })
    .await;
    assert_eq!(stub.requests("/instances/a-1"), 0);
}

#[tokio::test]
async fn an_instance_with_an_entry_that_cannot_be_read_is_there_with_all_else() {
    let mut odd = shared(5, &["node-a", "node-b"]);
    odd["status"] = json!({"nodes": {"node-a": {"health": "Healthy"}, "node-b": {"health": "Healthy", "reason": "x"}}});
    odd["metadata"]["annotations"] = json!({"leafhost.dev/generation": "x"});
    let (_stub, store, _folder) = notified(odd, Vec::new()).await;
    until(&store, |set| {
        let mut all = set.instances.values();
        all.any(|one| one.status.nodes.len() == 2)
    })
    .await;
}

#[tokio::test]
async fn an_answer_of_which_only_the_metadata_can_be_read_says_that_it_was_written() {
    let mut stub = Stub::start(move |request| {
        if request.starts_with("PATCH") {
            let mut unreadable = shared(9, &["node-a"]);
            unreadable["spec"] = json!(5);
            return Answer::Object(200, unreadable);
        }
        if request.contains("watch=true") {
            return failure(500, "no events");
        }
        let first = shared(5, &["node-b"]);
        let is_shared = request.contains("leafhost.dev%2Fshared");
        list(
            "5",
            if is_shared {
                std::slice::from_ref(&first)
            } else {
                &[]
            },
        )
    })
    .await;
    let (store, _folder) = watched(&mut stub);
    until(&store, |set| !set.instances.is_empty()).await;
    let key = store
        .instances()
        .borrow()
        .instances
        .keys()
        .next()
        .cloned()
        .unwrap();
    let join = Change::Update {
        key: key.clone(),
        uid: "u".into(),
        edits: vec![Edit::AddNode("node-a".into())],
    };
    let written = store.apply(vec![join]).await.remove(0).unwrap().unwrap();
    assert_eq!(written.spec.nodes, ["node-b", "node-a"]);
    assert_eq!(written.metadata.resource_version, "9");
    assert_eq!(store.instances().borrow().instances[&key], written);
}

/// Creates a store that lists Instances of version 90 and then again, when the stub has only one of version 40 and reports the database
/// version `current`.
async fn listed_again(current: &'static str) -> (Stub, KubeInstances, tempfile::TempDir) {
    let (silent, lists) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let mut stub = Stub::start(move |request| {
        let is_shared = request.contains("leafhost.dev%2Fshared");
        if request.contains("limit=1") {
            return list(current, &[]);
        }
        if !request.contains("watch=true") {
            let is_first = !is_shared || lists.fetch_add(1, Ordering::Relaxed) == 0;
            let (version, found) = if is_first { ("100", 90) } else { ("50", 40) };
            let found = shared(found, &["node-a"]);
            return list(version, if is_shared { std::slice::from_ref(&found) } else { &[] });
        }
        let (sender, receiver) = mpsc::unbounded_channel();
        if is_shared && request.contains("resourceVersion=100") {
            let expired = json!({"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "status": "Failure"}});
            sender.send(expired).unwrap();
        }
        if is_shared && request.contains("resourceVersion=50") {
            let next = json!({"type": "MODIFIED", "object": shared(51, &["node-a", "node-b"])});
            sender.send(next).unwrap();
        }
        silent.lock().unwrap().push(sender);
        Answer::Events(receiver)
    })
    .await;
    let (store, folder) = watched(&mut stub);
    until(&store, |set| !set.instances.is_empty()).await;
    (stub, store, folder)
}

fn versions(set: &InstanceSet) -> Vec<String> {
    let all = set.instances.values();
    all.map(|one| one.metadata.resource_version.clone())
        .collect()
}

#[tokio::test]
async fn after_a_restore_of_the_database_the_instances_are_as_it_has_them() {
    let (_stub, store, _folder) = listed_again("50").await;
    // Later events count, too.
    until(&store, |set| versions(set) == ["51"]).await;
}

#[tokio::test]
async fn a_list_of_an_api_server_that_lags_behind_takes_nothing_back() {
    let (stub, store, _folder) = listed_again("120").await;
    until(&store, |set| versions(set) == ["90"]).await;
    tokio::time::timeout(Duration::from_secs(20), async {
        while stub.requests("resourceVersion=50") == 0 {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    })
    .await
    .unwrap();
    assert_eq!(versions(&store.instances().borrow()), ["90"]);
}

#[tokio::test]
async fn an_instance_that_another_node_has_just_made_is_joined_and_not_made() {
    let (stub, store, _folder) = listed_again("120").await;
    let found = store
        .instances()
        .borrow()
        .instances
        .values()
        .next()
        .cloned();
    let create = Change::Create(Box::new(Instance::clone(&found.clone().unwrap())));
    let answer = store.apply(vec![create]).await.remove(0);
    let Err(StoreError::AlreadyExists { found: known, .. }) = answer else {
        panic!("{answer:?}");
    };
    assert_eq!(known, found);
    assert_eq!(stub.requests("POST"), 0);
}
