use std::collections::BTreeMap;
use std::convert::Infallible;

use async_trait::async_trait;
use axum::body::{Bytes, to_bytes};
use futures::future::{BoxFuture, join_all};
use futures::{FutureExt as _, StreamExt as _, stream};
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::Fault;
use leafhost_core::handler::{Description, Digest, HandlerFacts};
use leafhost_core::ports::Handler;
use leafhost_core::session::{Session, SessionSpec};
use leafhost_discovery::loader::LoadedSource;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::*;

mod tls;

/// Handler that never answers about `slow` details, and rejects `wrong` ones.
#[derive(Debug)]
struct Slow(HandlerFacts);

impl Slow {
    fn set() -> watch::Receiver<Arc<HandlerSet>> {
        let handler: Arc<dyn Handler> = Arc::new(Self(HandlerFacts {
            description: Description {
                name: "udev".into(),
                version: String::new(),
                summary: String::new(),
                example: String::new(),
                shared: false,
            },
            digest: Digest(String::new()),
            endpoint: None,
            warnings: Vec::new(),
            is_named: false,
            most_devices: 1,
            uses_udev: false,
        }));
        let source = LoadedSource {
            handler: Some(handler),
            ..LoadedSource::default()
        };
        let set = HandlerSet {
            complete: true,
            sources: BTreeMap::from([("udev.wasm".to_owned(), source)]),
            ..HandlerSet::default()
        };
        watch::channel(Arc::new(set)).1
    }
}

#[async_trait]
impl Handler for Slow {
    fn facts(&self) -> &HandlerFacts {
        &self.0
    }

    async fn validate(&self, details: &str) -> Result<Vec<FieldProblem>, Fault> {
        match details {
            "slow" => std::future::pending().await,
            "wrong" => Ok(vec![FieldProblem::new("rule", "is wrong")]),
            _ => Ok(Vec::new()),
        }
    }

    fn open(&self, _: SessionSpec) -> Box<dyn Session> {
        unreachable!("a webhook discovers nothing")
    }
}

fn shared() -> Arc<Shared> {
    Shared::new(watch::channel(None).1, false, Slow::set(), None)
}

fn opened(number: u8) -> Connection {
    Connection::new(Some([10, 0, 0, number].into()))
}

/// Returns the request that the API server posts for a Configuration with these details.
fn review(namespace: &str, details: &str) -> String {
    let spec = json!({"discoveryHandler": {"name": "udev", "discoveryDetails": details}});
    json!({
        "apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "request": {
            "uid": "7", "operation": "CREATE", "userInfo": {}, "name": "cams", "namespace": namespace, "dryRun": false,
            "kind": {"group": "akri.sh", "version": "v0", "kind": "Configuration"},
            "resource": {"group": "akri.sh", "version": "v0", "resource": "configurations"},
            "object": {"apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "cams", "namespace": namespace}, "spec": spec},
        },
    })
    .to_string()
}

fn asked(
    shared: &Arc<Shared>,
    caller: &Connection,
    body: impl Into<Body>,
) -> BoxFuture<'static, Response> {
    validate(
        State(Arc::clone(shared)),
        Extension(caller.clone()),
        body.into(),
    )
    .boxed()
}

async fn answer(response: Response) -> Value {
    assert_eq!(response.status(), StatusCode::OK);
    let body = to_bytes(response.into_body(), MOST_BYTES).await.unwrap();
    serde_json::from_slice::<Value>(&body).unwrap()["response"].clone()
}

fn is_checked(answer: &Value) -> bool {
    answer["warnings"].is_null()
}

#[tokio::test]
async fn a_misspelt_annotation_is_a_warning() {
    let mut body: Value = serde_json::from_str(&review("a", "")).unwrap();
    body["request"]["object"]["metadata"]["annotations"] = json!({"leafhost.dev/graze": "30s"});
    let answered = asked(&shared(), &opened(1), body.to_string()).await;
    let answered = answer(answered).await;
    assert_eq!(answered["allowed"], true);
    let warning = answered["warnings"][0].as_str().unwrap();
    assert!(warning.ends_with("did you mean leafhost.dev/grace?"));
}

/// Returns a body that never ends.
fn endless() -> Body {
    let first = stream::iter([Ok::<_, Infallible>(Bytes::from_static(b"{"))]);
    Body::from_stream(first.chain(stream::pending()))
}

#[tokio::test(start_paused = true)]
async fn half_open_requests_and_slow_details_of_one_namespace_delay_no_other() {
    let shared = shared();
    let slow: Vec<_> = (0..60)
        .map(|_| tokio::spawn(asked(&shared, &opened(1), review("aaa", "slow"))))
        .collect();
    let half_open: Vec<_> = (0..600)
        .map(|_| tokio::spawn(asked(&shared, &opened(2), endless())))
        .collect();
    // The paused clock does not advance while a task can run.
    let begin = Instant::now();
    let other = asked(&shared, &opened(1), review("zzz", "wrong")).await;
    assert!(
        begin.elapsed() < Duration::from_millis(10),
        "{:?}",
        begin.elapsed()
    );
    assert!(slow.iter().all(|task| !task.is_finished()));
    assert!(half_open.iter().all(|task| !task.is_finished()));
    let other = answer(other).await;
    assert!(is_checked(&other));
    let message = other["status"]["message"].as_str().unwrap();
    assert!(
        message.contains("discoveryDetails: rule: is wrong"),
        "{message}"
    );

    for task in half_open {
        assert_eq!(task.await.unwrap().status(), StatusCode::BAD_REQUEST);
    }
    assert!(begin.elapsed() <= READING + Duration::from_millis(10));
    for answered in join_all(slow).await {
        let answered = answer(answered.unwrap()).await;
        assert_eq!(answered["allowed"], true);
        assert!(!is_checked(&answered));
    }
    // The API server waits for ten seconds.
    assert!(
        begin.elapsed() < Duration::from_secs(9),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test(start_paused = true)]
async fn who_names_many_namespaces_delays_others_by_one_validation() {
    let shared = shared();
    let pod = opened(2);
    let flood: Vec<_> = (0..200)
        .map(|number| tokio::spawn(asked(&shared, &pod, review(&format!("n{number}"), "slow"))))
        .collect();
    tokio::time::sleep(VALIDATION / 2).await;
    let begin = Instant::now();
    let answered = asked(&shared, &opened(1), review("zzz", "right")).await;
    assert!(begin.elapsed() <= VALIDATION, "{:?}", begin.elapsed());
    assert!(is_checked(&answer(answered).await));
    drop(flood);
}

#[tokio::test]
async fn details_that_are_nested_too_deep_are_shown_to_no_handler() {
    let deep = "[".repeat(200_000);
    let answered = answer(asked(&shared(), &opened(1), review("n", &deep)).await).await;
    assert_eq!(answered["allowed"], false);
    let message = answered["status"]["message"].as_str().unwrap();
    let expected = "spec.discoveryHandler.discoveryDetails: has brackets nested more than 64 deep";
    assert!(message.starts_with(expected), "{message}");
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    for (size, expected) in [
        (MOST_BYTES, StatusCode::OK),
        (MOST_BYTES + 1, StatusCode::BAD_REQUEST),
    ] {
        let mut body = review("n", "right").into_bytes();
        body.resize(size, b' ');
        let answer = asked(&shared(), &opened(1), body).await;
        assert_eq!(answer.status(), expected, "{size}");
    }
}
