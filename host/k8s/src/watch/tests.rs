use std::sync::Mutex;

use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use super::*;
use crate::tests::stub::{Answer, Stub, failure, list};

/// Starts a stub without objects that answers each watch with the next of `answers`, and further ones with silence.
async fn server(answers: impl IntoIterator<Item = Answer>) -> Stub {
    let answers: Vec<_> = answers.into_iter().collect();
    let answers = Mutex::new(answers.into_iter());
    let silent = Mutex::new(Vec::new());
    Stub::start(move |request| {
        if !request.contains("watch=true") {
            return list("7", &[]);
        }
        let next = answers.lock().unwrap().next();
        next.unwrap_or_else(|| silence(&silent))
    })
    .await
}

/// Returns a watch that opens and sends nothing.
fn silence(kept: &Mutex<Vec<mpsc::UnboundedSender<Value>>>) -> Answer {
    let (sender, events) = mpsc::unbounded_channel();
    kept.lock().unwrap().push(sender);
    Answer::Events(events)
}

/// Returns a watch that sends these events and ends.
fn events(events: impl IntoIterator<Item = Value>) -> Answer {
    let (sender, receiver) = mpsc::unbounded_channel();
    for event in events {
        sender.send(event).unwrap();
    }
    Answer::Events(receiver)
}

fn added(version: &str) -> Value {
    let metadata = json!({"name": "a", "namespace": "n", "resourceVersion": version});
    json!({"type": "ADDED", "object": {"metadata": metadata}})
}

fn error(code: u16) -> Value {
    let status = json!({"kind": "Status", "status": "Failure", "code": code, "message": "broken"});
    json!({"type": "ERROR", "object": status})
}

fn watch(stub: &Stub) -> Watch<ConfigMap> {
    let mut watch = Watch::new(Api::all(stub.client.clone()));
    watch.follow.timeout = Some(1);
    watch
}

/// Returns a word for each next event, up to `last`.
async fn seen(watch: &mut Watch<ConfigMap>, last: &str) -> Vec<String> {
    let mut seen = Vec::new();
    while seen.last().is_none_or(|seen| seen != last) {
        seen.push(match watch.next().await {
            Ok(Event::Init) => "list".to_owned(),
            Ok(Event::InitApply(_)) => "listed".to_owned(),
            Ok(Event::InitDone(_)) => "listed all".to_owned(),
            Ok(Event::Apply(object)) => object.resource_version().unwrap(),
            Ok(Event::Delete(_)) => "deleted".to_owned(),
            Ok(Event::Resumed) => "works".to_owned(),
            Err(failure) => failure.message,
        });
    }
    seen
}

#[tokio::test]
async fn a_connection_that_falls_silent_is_told_and_replaced_without_a_new_list() {
    let kept = Mutex::new(Vec::new());
    let stub = server([silence(&kept), events([added("8")])]).await;
    let mut watch = watch(&stub);
    assert_eq!(
        seen(&mut watch, "8").await,
        [
            "list",
            "listed all",
            "the API server did not answer within 6 seconds",
            "8"
        ]
    );
    assert_eq!((stub.requests("watch=true"), stub.requests("")), (2, 3));
}

#[tokio::test]
async fn a_list_that_falls_silent_is_told_and_begun_again() {
    let kept = Mutex::new(Vec::new());
    let stub = Stub::start(move |_| silence(&kept)).await;
    let told = "the API server did not answer within 6 seconds";
    let mut watch = watch(&stub);
    assert_eq!(seen(&mut watch, told).await, ["list", told]);
    assert_eq!(seen(&mut watch, told).await, ["list", told]);
}

#[tokio::test]
async fn after_an_error_the_watch_goes_on_where_it_was_and_says_when_it_works() {
    let answers = [events([added("8"), error(500)]), failure(503, "busy")];
    let stub = server(answers).await;
    let mut watch = watch(&stub);
    assert_eq!(
        seen(&mut watch, "works").await,
        ["list", "listed all", "8", "broken", "busy", "works"]
    );
    assert_eq!(stub.requests("resourceVersion=8"), 2);
    assert_eq!((stub.requests("watch=true"), stub.requests("")), (3, 4));
}

/// The unreadable event decodes as a status without a code.
#[tokio::test]
async fn an_event_that_cannot_be_read_is_told_once_and_those_after_it_are_seen() {
    let unreadable = json!({"type": "ADDED", "object": {"metadata": {"name": 7}}});
    let stub = server([events([added("8"), unreadable, added("9")])]).await;
    let mut watch = watch(&stub);
    let told = "cannot read an event of the watch";
    assert_eq!(
        seen(&mut watch, "9").await,
        ["list", "listed all", "8", told, "9"]
    );
    assert_eq!(stub.requests("watch=true"), 1);
}

#[tokio::test]
async fn what_is_too_long_ago_is_listed_again_and_no_failure() {
    let stub = server([
        events([error(410)]),
        failure(410, "expired"),
        events([added("8")]),
    ])
    .await;
    let mut watch = watch(&stub);
    let listed = ["list", "listed all"];
    assert_eq!(
        seen(&mut watch, "8").await,
        [&listed[..], &listed, &listed, &["8"]].concat()
    );
}

#[tokio::test]
async fn watches_that_end_at_once_are_opened_later_and_later() {
    let stub = server(std::iter::repeat_with(|| events([])).take(3)).await;
    let begun = Instant::now();
    let mut watch = watch(&stub);
    let told = "the API server ended the watch at once";
    for _ in 0..3 {
        seen(&mut watch, told).await;
    }
    // The first two waits are at least 0.8 and 1.6 s.
    assert!(begun.elapsed() >= Duration::from_millis(2_400));
    assert_eq!((stub.requests("watch=true"), stub.requests("")), (3, 4));
}

#[tokio::test]
async fn objects_that_are_not_defined_are_looked_for_every_five_seconds() {
    let stub = server([]).await;
    let mut reader = Reader::<ConfigMap> {
        api: Api::all(stub.client.clone()),
        list: ListParams::default(),
        follow: WatchParams::default(),
        passed: mpsc::channel(1).0,
        backoff: DefaultBackoff::default(),
        resume: Instant::now(),
        is_failing: false,
    };
    let mut waits = |code| {
        let failure = Failure::answered(code, "");
        reader.delay(&failure);
        reader.resume - Instant::now()
    };
    let most = |waits: &mut dyn FnMut() -> Duration| (0..20).map(|_| waits()).max().unwrap();
    assert!(most(&mut || waits(Some(404))) <= UNDEFINED);
    assert!(most(&mut || waits(Some(500))) > UNDEFINED);
}

#[tokio::test]
async fn a_list_of_some_objects_is_not_read_from_the_database_and_one_of_all_comes_in_pages() {
    let stub = server([]).await;
    seen(&mut watch(&stub), "listed all").await;
    assert_eq!(stub.requests("limit=500"), 1);
    assert_eq!(stub.requests("resourceVersion=0"), 0);
    for mut watch in [watch(&stub).labels("a=b"), watch(&stub).fields("a=b")] {
        seen(&mut watch, "listed all").await;
    }
    assert_eq!(stub.requests("resourceVersion=0"), 2);
    assert_eq!(stub.requests("limit=500"), 1);
}

#[tokio::test]
async fn events_that_the_server_has_sent_are_taken_together() {
    let versions = (8..58).map(|version| version.to_string());
    let stub = server([events(versions.map(|version| added(&version)))]).await;
    let mut watch = watch(&stub);
    let mut taken = Vec::new();
    while taken.iter().sum::<usize>() < 50 {
        let mut count = 0;
        let is_change = |event: &Result<_, _>| matches!(event, Ok(Event::Apply(_)));
        watch
            .take(|event| count += usize::from(is_change(&event)))
            .await;
        taken.extend((count > 0).then_some(count));
    }
    assert_eq!(taken, [50]);
}
