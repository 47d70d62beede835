//! The admin endpoint: plain HTTP/1.1, read-only.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the agent runs |
//! | `/readyz` | 200 once Configurations and handlers were read and Instances written; 503 with the reason before that, and while no slot can be claimed |
//! | `/metrics` | the metrics, Prometheus text format 0.0.4 |
//! | `/status` | the status document, JSON; its version in the header `leafhost-status-version` |
//! | `/status?after=V` | the status document as soon as its version is not `V`; 304 if it still is after 30 seconds |

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use leafhost_endpoint::{Listener, serve};
use leafhost_metrics::CONTENT_TYPE;
use serde::Deserialize;
use tokio::net::{TcpListener, UnixListener};
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio_util::sync::CancellationToken;

use crate::document::AgentState;
use crate::metrics::Metrics;

/// Header of `/status` with the version of the document: a number that differs after every change.
pub const VERSION_HEADER: &str = "leafhost-status-version";
/// Longest time that `/status?after=` waits for another version.
const LONG_POLL: Duration = Duration::from_secs(30);
/// Minimum time between two versions of the document.
const SPACING: Duration = Duration::from_millis(100);
/// State that the endpoint shows.
#[derive(Debug, Clone)]
pub struct Admin {
    pub(crate) board: AgentState,
    pub(crate) version: watch::Receiver<u64>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) lost_log_lines: fn() -> u64,
    /// Semaphore that limits each listener to one document at a time.
    pub(crate) making: Arc<Semaphore>,
    pub(crate) shutdown: CancellationToken,
}

impl Admin {
    /// Returns all routes, for one listener.
    pub fn routes(mut self) -> Router {
        self.making = Arc::new(Semaphore::new(1));
        Router::new()
            .route("/healthz", get(async || "ok\n"))
            .route("/readyz", get(ready))
            .route("/metrics", get(metrics))
            .route("/status", get(status))
            .with_state(self)
    }

    /// Returns the route `/metrics` alone.
    pub fn metrics_route(self) -> Router {
        Router::new()
            .route("/metrics", get(metrics))
            .with_state(self)
    }
}

/// Serves the endpoint of an agent that has not started yet: answers with the reason why it waits.
pub async fn serve_waiting(
    listener: TcpListener,
    socket: Option<UnixListener>,
    waits: watch::Receiver<Option<String>>,
) {
    let routes = Router::new()
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(waiting))
        .route("/status", get(waiting))
        .with_state(waits);
    let stop = CancellationToken::new();
    let unix = async {
        if let Some(socket) = socket {
            serve(Listener::Unix(socket), routes.clone(), stop.clone()).await;
        }
    };
    let tcp = serve(Listener::Tcp(listener), routes.clone(), stop.clone());
    tokio::join!(tcp, unix);
}

async fn waiting(State(waits): State<watch::Receiver<Option<String>>>) -> (StatusCode, String) {
    let why = waits.borrow().clone().unwrap_or_default();
    (
        StatusCode::SERVICE_UNAVAILABLE,
        format!("starting: {why}\n"),
    )
}

async fn ready(State(admin): State<Admin>) -> (StatusCode, String) {
    let waits = admin.board.waits_for();
    let why = waits.map(|what| format!("starting: waits for {what}\n"));
    match why.or_else(|| Some(format!("{}\n", admin.board.cannot()?))) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    admin.metrics.count_problems(&admin.board.count_problems());
    if let Some(claims) = &admin.board.claims {
        admin.metrics.count_slices(&claims.slices.borrow());
    }
    let devices = Arc::clone(&admin.board.devices.borrow());
    admin.metrics.discovery.count_devices(&devices);
    admin.metrics.lost_log_lines((admin.lost_log_lines)());
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
            // The publisher ends only at the shutdown.
            _ = version.wait_for(|now| *now != after) => {}
            () = tokio::time::sleep(LONG_POLL) => {}
            () = admin.shutdown.cancelled() => {}
        }
    }
    // Read before the document is built: later changes belong to another version.
    let now = *version.borrow();
    let header = (
        HeaderName::from_static(VERSION_HEADER),
        HeaderValue::from(now),
    );
    if after == Some(now) {
        return (StatusCode::NOT_MODIFIED, [header]).into_response();
    }
    let board = admin.board.clone();
    let permit = Arc::clone(&admin.making).acquire_owned().await;
    // Built on another thread, so that it delays no other task. The thread continues if the client hangs up, and keeps the permit.
    let created = spawn_blocking(move || {
        let _permit = permit;
        Json(board.status()).into_response()
    })
    .await;
    let Ok(document) = created else {
        tracing::error!("creating the status panicked; this is a bug");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    ([header], document).into_response()
}

/// Increments the version of the status document after each change; runs until it is dropped.
pub(crate) async fn count_versions(mut board: AgentState, version: watch::Sender<u64>) {
    loop {
        board.changed().await;
        version.send_modify(|version| *version += 1);
        tokio::time::sleep(SPACING).await;
    }
}

#[cfg(test)]
mod tests;
