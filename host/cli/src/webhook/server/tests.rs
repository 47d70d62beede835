use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};

use axum::body::Bytes;
use futures::{FutureExt as _, StreamExt as _, stream};

use super::*;

fn shared() -> Arc<Shared> {
    Arc::new(Shared {
        certificate: watch::channel(None).1,
        handlers: watch::channel(Arc::default()).1,
        names: None,
        slots: Semaphore::new(AT_ONCE),
    })
}

/// A body that counts its reads and has no end.
fn endless(reads: &Arc<AtomicUsize>) -> Body {
    let reads = Arc::clone(reads);
    let first = stream::once(async move {
        reads.fetch_add(1, Ordering::Relaxed);
        Ok::<_, Infallible>(Bytes::from_static(b"{"))
    });
    Body::from_stream(first.chain(stream::pending()))
}

#[tokio::test(start_paused = true)]
async fn a_request_waits_unread_while_eight_are_read_and_is_refused_if_it_does_not_end() {
    let (shared, reads) = (shared(), Arc::new(AtomicUsize::new(0)));
    let mut requests: Vec<_> = (0..=AT_ONCE)
        .map(|_| validate(State(Arc::clone(&shared)), endless(&reads)).boxed())
        .collect();
    for request in &mut requests {
        assert!(request.now_or_never().is_none());
    }
    assert_eq!(reads.load(Ordering::Relaxed), AT_ONCE);
    for answer in futures::future::join_all(requests).await {
        assert_eq!(answer.status(), StatusCode::BAD_REQUEST);
    }
    assert_eq!(reads.load(Ordering::Relaxed), AT_ONCE + 1);
}

#[tokio::test]
async fn a_request_that_is_too_large_is_refused() {
    let review = br#"{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {
        "uid": "1", "kind": {"group": "akri.sh", "version": "v0", "kind": "Configuration"},
        "resource": {"group": "akri.sh", "version": "v0", "resource": "configurations"},
        "operation": "DELETE", "userInfo": {}, "dryRun": false}}"#;
    for (size, expected) in [
        (MOST_BYTES, StatusCode::OK),
        (MOST_BYTES + 1, StatusCode::BAD_REQUEST),
    ] {
        let mut body = review.to_vec();
        body.resize(size, b' ');
        let answer = validate(State(shared()), body.into()).await;
        assert_eq!(answer.status(), expected, "{size}");
    }
}
