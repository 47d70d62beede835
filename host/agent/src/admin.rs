//! The admin endpoint: plain HTTP/1.1, read-only.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the agent runs |
//! | `/readyz` | 200 once Configurations and handlers were read and the Instances said so; 503 before, with what is waited for, never again after |
//! | `/metrics` | the metrics, Prometheus text format 0.0.4 |
//! | `/status` | the status document, JSON; its version in the header `leafhost-status-version` |
//! | `/status?after=V` | the same as soon as its version is not `V`; 304 when it still is after 30 seconds |

use std::fs::File;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_io_timeout::TimeoutStream;
use tokio_util::sync::CancellationToken;

use crate::document::Board;
use crate::metrics::{CONTENT_TYPE, Metrics};

mod rendered;
use rendered::Rendered;

/// The header of `/status` that says which version of the document it is: a number that is another one after every change.
pub const VERSION_HEADER: &str = "leafhost-status-version";
/// So long `/status?after=` waits.
const LONG_POLL: Duration = Duration::from_secs(30);
/// The document's version grows at most this often.
const SPACING: Duration = Duration::from_millis(100);
/// A request's head must be there within this time; also how long an idle connection is kept.
const HEAD: Duration = Duration::from_secs(30);
/// More connections wait to be accepted.
const CONNECTIONS: usize = 64;
/// A connection whose other side takes nothing for so long is closed.
const UNREAD: Duration = Duration::from_secs(30);
/// So long what has begun is waited for at the end.
const GOODBYE: Duration = Duration::from_secs(2);
/// The largest head of a request, in bytes.
const HEAD_BYTES: usize = 16 << 10;

/// What the endpoint shows.
#[derive(Debug, Clone)]
pub struct Admin {
    board: Board,
    version: watch::Receiver<u64>,
    metrics: Arc<Metrics>,
    rendered: Arc<Rendered>,
    shutdown: CancellationToken,
}

impl Admin {
    pub(crate) fn new(
        board: Board,
        version: watch::Receiver<u64>,
        metrics: Arc<Metrics>,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            board,
            version,
            metrics,
            rendered: Arc::default(),
            shutdown,
        }
    }

    /// All paths.
    pub fn routes(self) -> Router {
        Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .route("/status", get(status))
            .with_state(self)
    }

    /// `/metrics` alone.
    pub fn metrics_route(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    match admin.board.waits_for() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(what) => (
            StatusCode::SERVICE_UNAVAILABLE,
            format!("starting: waits for {what}\n"),
        ),
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    admin.metrics.count_problems(&admin.board.count_problems());
    (
        [(header::CONTENT_TYPE, CONTENT_TYPE)],
        admin.metrics.render(),
    )
}

#[derive(Debug, Deserialize)]
struct After {
    after: Option<u64>,
}

async fn status(State(admin): State<Admin>, Query(After { after }): Query<After>) -> Response {
    let mut version = admin.version.clone();
    if let Some(after) = after {
        tokio::select! {
            // An end of the publisher comes with the shutdown.
            _ = version.wait_for(|now| *now != after) => {}
            () = tokio::time::sleep(LONG_POLL) => {}
            () = admin.shutdown.cancelled() => {}
        }
    }
    // Taken before the document is made: what changes meanwhile is another version.
    let now = *version.borrow();
    let header = (
        HeaderName::from_static(VERSION_HEADER),
        HeaderValue::from(now),
    );
    if after == Some(now) {
        return (StatusCode::NOT_MODIFIED, [header]).into_response();
    }
    let json = (
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    match admin.rendered.status(&admin.board, now).await {
        Some(text) => ([header, json], Body::from(Bytes::from_owner(text))).into_response(),
        None => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

/// Counts the versions of the status document.
pub(crate) async fn count_versions(
    mut board: Board,
    version: watch::Sender<u64>,
    shutdown: CancellationToken,
) {
    loop {
        let open = tokio::select! {
            () = shutdown.cancelled() => return,
            open = board.changed() => open,
        };
        if !open {
            // A publisher ends only with its task, which is somebody else's decision.
            shutdown.cancelled().await;
            return;
        }
        version.send_modify(|version| *version += 1);
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(SPACING) => {}
        }
    }
}

/// Serves until `shutdown`; then requests that have begun are answered, within [`GOODBYE`]. What it keeps spare it has from now on.
pub(crate) fn serve(
    listener: TcpListener,
    routes: Router,
    shutdown: CancellationToken,
) -> impl Future<Output = ()> {
    answer(listener, routes, shutdown, spare())
}

/// A descriptor that can be given up.
fn spare() -> Option<File> {
    File::open("/dev/null").ok()
}

async fn answer(
    listener: TcpListener,
    routes: Router,
    shutdown: CancellationToken,
    mut kept: Option<File>,
) {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        kept = kept.or_else(spare);
        let accepted = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = accept(&listener, &places, &mut kept) => accepted,
        };
        let Some((stream, place)) = accepted else {
            // Out of file descriptors, most likely: some connection has to end first.
            tokio::time::sleep(SPACING).await;
            continue;
        };
        let service = TowerToHyperService::new(routes.clone());
        let mut stream = TimeoutStream::new(stream);
        stream.set_write_timeout(Some(UNREAD));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(Box::pin(stream)), service);
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to the admin endpoint failed");
            }
            drop(place);
        });
    }
    // Who does not take what was asked for is not waited for.
    let _ = timeout(GOODBYE, graceful.shutdown()).await;
    connections.shutdown().await;
}

type Accepted = (tokio::net::TcpStream, tokio::sync::OwnedSemaphorePermit);

/// The next connection for which there is a place, on the `spare` descriptor when there is no other: what is wrong can be
/// asked for even then. Cancel-safe: a place that was got goes back.
async fn accept(
    listener: &TcpListener,
    places: &Arc<Semaphore>,
    spare: &mut Option<File>,
) -> Option<Accepted> {
    let place = Arc::clone(places).acquire_owned().await.ok()?;
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return Some((stream, place)),
            Err(error) if spare.take().is_none() => {
                tracing::debug!(%error, "the admin endpoint cannot accept a connection");
                return None;
            }
            Err(_) => {}
        }
    }
}

#[cfg(test)]
mod tests;
