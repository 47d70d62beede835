//! The admin endpoint: plain HTTP/1.1, read-only.
//!
//! | path | answer |
//! |---|---|
//! | `/healthz` | 200 while the agent runs |
//! | `/readyz` | 200 once Configurations and handlers were read and the Instances said so; 503 before, with what is waited for, and while no slot can be claimed, with the reason |
//! | `/metrics` | the metrics, Prometheus text format 0.0.4 |
//! | `/status` | the status document, JSON; its version in the header `leafhost-status-version` |
//! | `/status?after=V` | the same as soon as its version is not `V`; 304 when it still is after 30 seconds |

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::extract::{Extension, Query, State};
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use serde::Deserialize;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinSet, spawn_blocking};
use tokio::time::timeout;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

use crate::document::Board;
use crate::metrics::{CONTENT_TYPE, Metrics};
use crate::reserve;

/// The header of `/status` that says which version of the document it is: a number that is another one after every change.
pub const VERSION_HEADER: &str = "leafhost-status-version";
/// So long `/status?after=` waits.
const LONG_POLL: Duration = Duration::from_secs(30);
/// The document's version grows at most this often.
const SPACING: Duration = Duration::from_millis(100);
/// A request's head must be there within this time.
const HEAD: Duration = Duration::from_secs(10);
/// A connection is for one request, and is closed after this time, whoever has not read the answer.
const CONNECTION: Duration = Duration::from_secs(90);
/// So many connections are open at a time on one listener.
const CONNECTIONS: usize = 64;
/// So many documents are sent at a time on one listener.
const DOCUMENTS: usize = 8;
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
    lost_log_lines: fn() -> u64,
    documents: Arc<Documents>,
    shutdown: CancellationToken,
}

/// The documents of one listener: they may be large, and whoever asks for one need not read it.
#[derive(Debug)]
struct Documents {
    /// One is made at a time.
    making: Arc<Semaphore>,
    sent: Places,
}

impl Default for Documents {
    fn default() -> Self {
        Self {
            making: Arc::new(Semaphore::new(1)),
            sent: Places::new(DOCUMENTS),
        }
    }
}

/// Connections that have something of which there is only so much: of too many the oldest is closed.
#[derive(Debug)]
struct Places {
    most: usize,
    taken: Mutex<VecDeque<Connection>>,
}

/// A connection: closed when it is cancelled, cancelled when it has ended.
type Connection = CancellationToken;

impl Places {
    fn new(most: usize) -> Self {
        Self {
            most,
            taken: Mutex::default(),
        }
    }

    fn take(&self, connection: Connection) {
        let mut taken = self.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.retain(|connection| !connection.is_cancelled());
        if taken.len() >= self.most
            && let Some(oldest) = taken.pop_front()
        {
            oldest.cancel();
        }
        taken.push_back(connection);
    }
}

impl Admin {
    pub(crate) fn new(
        board: Board,
        version: watch::Receiver<u64>,
        metrics: Arc<Metrics>,
        lost_log_lines: fn() -> u64,
        shutdown: CancellationToken,
    ) -> Self {
        Self {
            board,
            version,
            metrics,
            lost_log_lines,
            documents: Arc::default(),
            shutdown,
        }
    }

    /// All paths, for one listener.
    pub fn routes(mut self) -> Router {
        self.documents = Arc::default();
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
    let waits = admin.board.waits_for();
    let why = waits.map(|what| format!("starting: waits for {what}\n"));
    match why.or_else(|| Some(format!("{}\n", admin.board.cannot()?))) {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

async fn metrics(State(admin): State<Admin>) -> impl IntoResponse {
    admin.metrics.count_problems(&admin.board.count_problems());
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

async fn status(
    State(admin): State<Admin>,
    Extension(connection): Extension<Connection>,
    Query(After { after }): Query<After>,
) -> Response {
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
    let board = admin.board.clone();
    let one = Arc::clone(&admin.documents.making).acquire_owned().await;
    // Aside from what has to be in time. Goes on if the client hangs up, and is the one until it has ended.
    let made = spawn_blocking(move || {
        let _one = one;
        Json(board.status()).into_response()
    })
    .await;
    let Ok(document) = made else {
        tracing::error!("making the status broke down, which is a bug");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    admin.documents.sent.take(connection);
    ([header], document).into_response()
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

/// Where connections come from.
#[derive(Debug)]
pub enum Listener {
    /// From whoever reaches the address.
    Tcp(TcpListener),
    /// From whoever may open the socket.
    Unix(UnixListener),
}

impl Listener {
    /// The next connection, on a descriptor that is kept back when there is no other: what is wrong can be asked for even then.
    async fn accept(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        poll_fn(|context| match self.poll_accept(context) {
            // Out of file descriptors, most likely.
            Poll::Ready(Err(_)) => reserve::lend(|| self.poll_accept(context)),
            accepted => accepted,
        })
        .await
    }

    fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<Either<TcpStream, UnixStream>>> {
        match self {
            Self::Tcp(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| Either::Left(stream)),
            Self::Unix(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| Either::Right(stream)),
        }
    }
}

/// Serves until `shutdown`; then requests that have begun are answered, within [`GOODBYE`].
pub(crate) async fn serve(listener: Listener, routes: Router, shutdown: CancellationToken) {
    let places = Places::new(CONNECTIONS);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    // Not even of those that are kept back is one left: some connection has to end first.
                    tracing::debug!(%error, "the admin endpoint cannot accept a connection");
                    tokio::time::sleep(SPACING).await;
                    continue;
                }
            },
        };
        let open = Connection::new();
        places.take(open.clone());
        let service = TowerToHyperService::new(routes.clone().layer(Extension(open.clone())));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .header_read_timeout(HEAD)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let connection = graceful.watch(connection);
        connections.spawn(async move {
            let _ends = open.clone().drop_guard();
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the admin endpoint failed");
                },
                () = open.cancelled() => {}
                () = tokio::time::sleep(CONNECTION) => {}
            }
        });
    }
    // Who does not take what was asked for is not waited for.
    let _ = timeout(GOODBYE, graceful.shutdown()).await;
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
