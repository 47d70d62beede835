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
/// How long `/status?after=` waits for another version.
const LONG_POLL: Duration = Duration::from_secs(30);
/// Versions of the document are at least this far apart. Also the pause after a failed `accept`.
const SPACING: Duration = Duration::from_millis(100);
/// How long a client has to send a request's head.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection serves one request. It is closed after this time, even if the client has not read the answer.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);
/// The most open connections of one listener.
const MAX_CONNECTIONS: usize = 64;
/// The most connections of one listener to which a document is being sent.
const MAX_DOCUMENTS: usize = 8;
/// How long the shutdown waits for requests under way.
const DRAIN: Duration = Duration::from_secs(2);
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

/// The documents that one listener makes and sends. They may be large, and a client may never read one.
#[derive(Debug)]
struct Documents {
    /// Lets one be made at a time.
    making: Arc<Semaphore>,
    sending: ConnectionLimit,
}

impl Default for Documents {
    fn default() -> Self {
        Self {
            making: Arc::new(Semaphore::new(1)),
            sending: ConnectionLimit::new(MAX_DOCUMENTS),
        }
    }
}

/// A limited number of connections: one more closes the oldest. So idle clients and slow readers keep nobody else out.
#[derive(Debug)]
struct ConnectionLimit {
    most: usize,
    open: Mutex<VecDeque<Connection>>,
}

/// Stands for a connection, which is closed when this is cancelled. It is cancelled when the connection has ended.
type Connection = CancellationToken;

impl ConnectionLimit {
    fn new(most: usize) -> Self {
        Self {
            most,
            open: Mutex::default(),
        }
    }

    fn add(&self, connection: Connection) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|connection| !connection.is_cancelled());
        if open.len() >= self.most
            && let Some(oldest) = open.pop_front()
        {
            oldest.cancel();
        }
        open.push_back(connection);
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
            // The publisher ends only at the shutdown.
            _ = version.wait_for(|now| *now != after) => {}
            () = tokio::time::sleep(LONG_POLL) => {}
            () = admin.shutdown.cancelled() => {}
        }
    }
    // Read before the document is made: what changes meanwhile belongs to another version.
    let now = *version.borrow();
    let header = (
        HeaderName::from_static(VERSION_HEADER),
        HeaderValue::from(now),
    );
    if after == Some(now) {
        return (StatusCode::NOT_MODIFIED, [header]).into_response();
    }
    let board = admin.board.clone();
    let permit = Arc::clone(&admin.documents.making).acquire_owned().await;
    // Made on another thread, so that it delays no other task. It goes on if the client hangs up, and keeps the permit.
    let made = spawn_blocking(move || {
        let _permit = permit;
        Json(board.status()).into_response()
    })
    .await;
    let Ok(document) = made else {
        tracing::error!("the making of the status panicked; this is a bug");
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    };
    admin.documents.sending.add(connection);
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
            // A publisher ends only with its task, and whoever joins that task decides what follows.
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
    /// From clients that reach the address.
    Tcp(TcpListener),
    /// From clients that may open the socket.
    Unix(UnixListener),
}

impl Listener {
    /// The next connection. If no file descriptor is free, it gets a reserved one, so that the status can be read even then.
    async fn accept(&self) -> io::Result<Either<TcpStream, UnixStream>> {
        poll_fn(|context| match self.poll_accept(context) {
            // Most likely no file descriptor is free.
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

/// Serves until `shutdown`. Then requests under way are answered, within [`DRAIN`].
///
/// Not by `axum::serve`: that would leave the limit, the timeouts and the reserve to a listener and a stream of our own.
pub(crate) async fn serve(listener: Listener, routes: Router, shutdown: CancellationToken) {
    let limit = ConnectionLimit::new(MAX_CONNECTIONS);
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let stream = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(stream) => stream,
                Err(error) => {
                    // Not even a reserved descriptor is free: a connection has to end first.
                    tracing::debug!(%error, "the admin endpoint cannot accept a connection");
                    tokio::time::sleep(SPACING).await;
                    continue;
                }
            },
        };
        let open = Connection::new();
        limit.add(open.clone());
        let service = TowerToHyperService::new(routes.clone().layer(Extension(open.clone())));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .keep_alive(false)
            .header_read_timeout(HEAD_TIMEOUT)
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
                () = tokio::time::sleep(CONNECTION_TIMEOUT) => {}
            }
        });
    }
    // A client that does not read its answer is not waited for.
    let _ = timeout(DRAIN, graceful.shutdown()).await;
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
