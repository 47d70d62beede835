use std::sync::Mutex;
use std::time::Duration;

use leafhost_core::names::ConfigurationKey;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::*;
use crate::tests::stub::{Answer, Stub, failure, list};

fn mk_object(name: &str, version: &str) -> Value {
    json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": "default", "uid": name, "resourceVersion": version},
        "spec": {"discoveryHandler": {"name": "udev"}}})
}

fn with_secret(mut object: Value) -> Value {
    object["spec"]["discoveryHandler"]["discoveryProperties"] = json!([
        {"name": "p", "valueFrom": {"secretKeyRef": {"name": "camera", "key": "password"}}}]);
    object
}

/// State of the stub API server.
#[derive(Default)]
struct Server {
    /// Status code with which every request fails, if set.
    failure: Option<u16>,
    names: Vec<&'static str>,
    /// Senders that feed the watches, or end them when dropped.
    watches: Vec<mpsc::UnboundedSender<Value>>,
    name_watches: Vec<mpsc::UnboundedSender<Value>>,
    /// Namespace that has the name `a`, if any.
    owner: Option<&'static str>,
    /// Password in the Secret that Configurations name, if the Secret exists.
    password: Option<&'static str>,
}

impl Server {
    fn answer(&mut self, request: &str) -> Answer {
        if let Some(code) = self.failure {
            return failure(code, "so it is");
        }
        if request.contains("/secrets/") {
            return match self.password {
                Some(password) => Answer::Object(
                    200,
                    json!({"metadata": {"name": "camera"}, "data": {"password": password}}),
                ),
                None => failure(404, "not there"),
            };
        }
        if request.contains("/resourcenames?") {
            if request.contains("watch=true") {
                // The watch stays open without an event.
                let (sender, events) = mpsc::unbounded_channel();
                self.name_watches.push(sender);
                return Answer::Events(events);
            }
            let object = |owner| {
                json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "ResourceName",
                "metadata": {"name": "a", "uid": "u", "resourceVersion": "3"}, "spec": {"namespace": owner}})
            };
            let objects: Vec<_> = self.owner.into_iter().map(object).collect();
            return list("7", &objects);
        }
        if request.contains("watch=true") {
            let (sender, events) = mpsc::unbounded_channel();
            self.watches.push(sender);
            return Answer::Events(events);
        }
        if request.contains("/secrets?") {
            return list("7", &[]);
        }
        let objects = self.names.iter().map(|name| mk_object(name, "5"));
        list("7", &objects.collect::<Vec<_>>())
    }

    fn send(&self, event: &Value) {
        for watch in &self.watches {
            drop(watch.send(event.clone()));
        }
    }
}

async fn start(server: Server) -> (Arc<Mutex<Server>>, Stub) {
    let server = Arc::new(Mutex::new(server));
    let answering = Arc::clone(&server);
    let stub = Stub::start(move |request| answering.lock().unwrap().answer(request)).await;
    (server, stub)
}

async fn until(
    configurations: &watch::Receiver<Arc<ConfigurationSet>>,
    what: &str,
    is_so: impl FnMut(&Arc<ConfigurationSet>) -> bool,
) -> Arc<ConfigurationSet> {
    let mut set = configurations.clone();
    let found = timeout(Duration::from_mins(1), set.wait_for(is_so)).await;
    found
        .unwrap_or_else(|_| panic!("never: {what}"))
        .unwrap()
        .clone()
}

fn has(set: &ConfigurationSet, name: &str) -> bool {
    let key = ConfigurationKey::new("default", name).unwrap();
    set.accepted.contains_key(&key)
}

#[tokio::test]
async fn a_right_that_is_taken_away_takes_nothing_away_and_is_not_asked_for_all_the_time() {
    let (server, mut stub) = start(Server {
        names: vec!["a"],
        ..Server::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let configurations = follow(
        stub.client.clone(),
        BTreeSet::new(),
        folder.path().join("configurations.json"),
        &mut stub.tasks,
    );
    until(&configurations, "the list", |set| {
        set.complete && has(set, "a")
    })
    .await;
    {
        let mut server = server.lock().unwrap();
        server.failure = Some(403);
        server.watches.clear();
    }
    let set = until(&configurations, "the failure", |set| {
        !set.problems.is_empty()
    })
    .await;
    assert!(set.complete && has(&set, "a"));
    server.lock().unwrap().failure = None;
    until(&configurations, "its end", |set| set.problems.is_empty()).await;
    let event = json!({"type": "ADDED", "object": mk_object("b", "9")});
    server.lock().unwrap().send(&event);
    until(&configurations, "what is new", |set| {
        has(set, "a") && has(set, "b")
    })
    .await;
    let requests = stub.requests("");
    assert!(requests < 20, "{requests} requests");
}

#[test]
fn each_failure_of_the_watch_has_its_remedy() {
    for (code, remedy) in [
        (
            Some(403),
            "allow the agent's service account to list and watch",
        ),
        (Some(404), "leafhost crds | kubectl apply"),
        (Some(500), "the agent tries again"),
        (None, "the agent tries again"),
    ] {
        let problem = describe(&Failure::answered(code, "so it is"));
        let text = problem.to_string();
        assert!(
            text.starts_with("Configurations: cannot be watched: so it is; "),
            "{text}"
        );
        assert!(text.contains(remedy), "{text}");
    }
}

#[tokio::test]
async fn nothing_is_complete_before_the_first_whole_list() {
    let (server, mut stub) = start(Server {
        failure: Some(500),
        ..Server::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let configurations = follow(
        stub.client.clone(),
        BTreeSet::new(),
        folder.path().join("configurations.json"),
        &mut stub.tasks,
    );
    let set = until(&configurations, "the failure", |set| {
        !set.problems.is_empty()
    })
    .await;
    assert!(!set.complete);
    server.lock().unwrap().failure = None;
    until(&configurations, "the list", |set| set.complete).await;
}

#[tokio::test]
async fn one_that_was_too_many_serves_when_another_is_deleted() {
    let names = (0..=capped_set::MAX_OF_NAMESPACE).map(|n| &*format!("c{n:04}").leak());
    let (server, mut stub) = start(Server {
        names: names.collect(),
        ..Server::default()
    })
    .await;
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("configurations.json");
    let configurations = follow(
        stub.client.clone(),
        BTreeSet::new(),
        memory,
        &mut stub.tasks,
    );
    let set = until(&configurations, "the list", |set| set.complete).await;
    assert_eq!(set.accepted.len(), capped_set::MAX_OF_NAMESPACE);
    assert_eq!(set.left_out.len(), 1);
    until_watched(&server, 1).await;
    {
        let mut server = server.lock().unwrap();
        server.names.remove(0);
        server.send(&json!({"type": "DELETED", "object": mk_object("c0000", "8")}));
    }
    let set = until(&configurations, "the one that was too many", |set| {
        set.left_out.is_empty() && has(set, "c0500")
    })
    .await;
    assert_eq!(set.accepted.len(), capped_set::MAX_OF_NAMESPACE);
}

async fn until_watched(server: &Mutex<Server>, watches: usize) {
    let wait = async {
        while server.lock().unwrap().watches.len() < watches {
            tokio::task::yield_now().await;
        }
    };
    timeout(Duration::from_secs(30), wait).await.unwrap();
}

#[tokio::test]
async fn a_missing_secret_is_named_and_its_configuration_is_whole_when_it_is_there() {
    let (server, mut stub) = start(Server::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("configurations.json");
    let configurations = follow(
        stub.client.clone(),
        BTreeSet::new(),
        memory,
        &mut stub.tasks,
    );
    until_watched(&server, 1).await;
    let object = with_secret(mk_object("a", "8"));
    let event = json!({"type": "ADDED", "object": object});
    server.lock().unwrap().send(&event);
    let set = until(&configurations, "the Configuration", |set| has(set, "a")).await;
    assert!(
        set.accepted
            .values()
            .all(|served| served.properties.is_err())
    );
    assert_eq!(
        set.problems[0].to_string(),
        "Configuration default/a: spec.discoveryHandler.discoveryProperties[0].valueFrom.secretKeyRef: \
         Secret default/camera does not exist; create it, or set optional: true; the handler is not called"
    );
    until_watched(&server, 2).await;
    let metadata = json!({"name": "camera", "namespace": "default", "resourceVersion": "9"});
    {
        let mut server = server.lock().unwrap();
        server.password = Some("c2VjcmV0");
        server.watches[1]
            .send(json!({"type": "ADDED", "object": {"metadata": metadata}}))
            .unwrap();
    }
    let set = until(&configurations, "the value", |set| set.problems.is_empty()).await;
    let discovery = set.accepted.values().next().unwrap();
    let properties = discovery.properties.as_ref().unwrap();
    assert_eq!(properties[0].value.as_deref(), Some(b"secret".as_slice()));
    assert!(properties[0].secret);
}

#[tokio::test]
async fn events_are_followed_and_an_expired_watch_is_no_problem() {
    let (server, mut stub) = start(Server::default()).await;
    let folder = tempfile::tempdir().unwrap();
    let configurations = follow(
        stub.client.clone(),
        BTreeSet::new(),
        folder.path().join("configurations.json"),
        &mut stub.tasks,
    );
    until(&configurations, "the first list", |set| set.complete).await;
    until_watched(&server, 1).await;
    let event = |kind: &str, object: Value| json!({"type": kind, "object": object});
    server
        .lock()
        .unwrap()
        .send(&event("ADDED", mk_object("a", "8")));
    until(&configurations, "the new one", |set| has(set, "a")).await;
    server
        .lock()
        .unwrap()
        .send(&event("DELETED", mk_object("a", "9")));
    until(&configurations, "its end", |set| !has(set, "a")).await;
    server.lock().unwrap().names = vec!["b"];
    let gone = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": 410,
        "reason": "Expired", "message": "too old resource version"});
    server.lock().unwrap().send(&event("ERROR", gone));
    let mut seen = configurations.clone();
    let set = until(&configurations, "the second list", |set| has(set, "b")).await;
    assert!(set.problems.is_empty() && seen.borrow_and_update().problems.is_empty());
}

#[tokio::test]
async fn an_agent_that_starts_without_the_api_server_serves_what_an_earlier_one_knew() {
    let folder = tempfile::tempdir().unwrap();
    let memory = folder.path().join("configurations.json");
    let watch = |stub: &mut Stub| {
        follow(
            stub.client.clone(),
            BTreeSet::new(),
            memory.clone(),
            &mut stub.tasks,
        )
    };
    let (_server, mut stub) = start(Server {
        names: vec!["a"],
        owner: Some("elsewhere"),
        ..Server::default()
    })
    .await;
    let earlier = watch(&mut stub);
    until(&earlier, "complete", |set| set.complete).await;
    let wait = async {
        while !memory.exists() || !memory.with_file_name("names.json").exists() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), wait)
        .await
        .unwrap();
    drop((earlier, stub));
    let (server, mut stub) = start(Server {
        failure: Some(503),
        ..Server::default()
    })
    .await;
    let later = watch(&mut stub);
    let set = until(&later, "remembered", |set| !set.accepted.is_empty()).await;
    assert!(!set.complete && set.accepted.len() == 1);
    assert_eq!(set.names.get("a").unwrap().namespace, "elsewhere");
    server.lock().unwrap().failure = None;
    // The Configuration was deleted meanwhile.
    let set = until(&later, "complete", |set| set.complete).await;
    assert!(set.accepted.is_empty());
    assert_eq!(set.names.get("a"), None);
}
