//! The HTTP server of what a process shows of itself: HTTP/1.1, one request a connection, bounded in number, size and time; also by TLS.
//!
//! Knows no path that is served, and of TLS neither whose certificates there are nor where they are from.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use rustls::ServerConfig;
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tokio_util::sync::CancellationToken;

pub mod fd_reserve;

/// Limits how long a client takes for the handshake of TLS, and to send a request's head.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// A connection serves one request. It is closed after this time, even if the client has not read the answer.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);
/// The most open connections of one listener. One more closes the oldest, so that idle clients and slow readers keep nobody else
/// out; by TLS the oldest without a handshake, if there is one. Each may be one to which a large document is being sent.
pub const MAX_CONNECTIONS: usize = 16;
/// Limits how long the shutdown waits for requests under way.
pub const DRAIN: Duration = Duration::from_secs(2);
/// The largest head of a request, in bytes.
pub const HEAD_BYTES: usize = 16 << 10;
/// Separates a failed `accept` from the next one.
const PAUSE: Duration = Duration::from_millis(100);

/// Accepts connections.
#[derive(Debug)]
pub enum Listener {
    /// From clients that reach the address.
    Tcp(TcpListener),
    /// The same by TLS, as it is said at the moment: which certificate is shown, and who may connect. Until it is said, connections are ended.
    Tls(TcpListener, watch::Receiver<Option<Arc<ServerConfig>>>),
    /// From clients that may open the socket.
    Unix(UnixListener),
}

/// A connection whose client has said nothing yet.
enum Accepted {
    Tcp(TcpStream),
    Tls(TcpStream, Option<Arc<ServerConfig>>),
    Unix(UnixStream),
}

/// A connection that is ready for requests.
type Stream = Either<Either<TcpStream, UnixStream>, TlsStream<TcpStream>>;

impl Listener {
    /// The next connection. If no file descriptor is free, it gets a reserved one, so that the status can be read even then.
    async fn accept(&self) -> io::Result<Accepted> {
        poll_fn(|context| match self.poll_accept(context) {
            // Most likely no file descriptor is free.
            Poll::Ready(Err(_)) => fd_reserve::lend(|| self.poll_accept(context)),
            accepted => accepted,
        })
        .await
    }

    fn poll_accept(&self, context: &mut Context<'_>) -> Poll<io::Result<Accepted>> {
        match self {
            Self::Tcp(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| Accepted::Tcp(stream)),
            Self::Tls(listener, tls) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| Accepted::Tls(stream, tls.borrow().clone())),
            Self::Unix(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

impl Accepted {
    /// Waits for the handshake, where there is one.
    async fn ready(self) -> io::Result<Stream> {
        match self {
            Self::Tcp(stream) => Ok(Either::Left(Either::Left(stream))),
            Self::Unix(stream) => Ok(Either::Left(Either::Right(stream))),
            Self::Tls(stream, tls) => {
                let tls = tls.ok_or_else(|| io::Error::other("there is no certificate yet"))?;
                let handshake = TlsAcceptor::from(tls).accept(stream);
                Ok(Either::Right(timeout(HEAD_TIMEOUT, handshake).await??))
            }
        }
    }
}

/// An open connection.
#[derive(Debug, Clone, Default)]
struct Open {
    /// Cancelled when it ends, or to end it.
    closed: CancellationToken,
    /// Cancelled after the handshake of TLS.
    is_known: CancellationToken,
}

/// Serves until `shutdown`, with at most [`MAX_CONNECTIONS`]. Then requests under way are answered, within [`DRAIN`].
pub async fn serve(listener: Listener, routes: Router, shutdown: CancellationToken) {
    serve_up_to(MAX_CONNECTIONS, listener, routes, shutdown).await;
}

/// Serves so many connections at a time.
///
/// Not by `axum::serve`: that would leave the limit, the timeouts and the reserve to a listener and a stream of our own.
pub async fn serve_up_to(
    most: usize,
    listener: Listener,
    routes: Router,
    shutdown: CancellationToken,
) {
    let mut open = VecDeque::<Open>::new();
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
                    tracing::debug!(%error, "the endpoint cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let own = Open::default();
        open.retain(|one| !one.closed.is_cancelled());
        if open.len() >= most {
            // Whoever has not shown a certificate keeps nobody out who has.
            let oldest = open.iter().position(|one| !one.is_known.is_cancelled());
            if let Some(oldest) = open.remove(oldest.unwrap_or_default()) {
                oldest.closed.cancel();
            }
        }
        open.push_back(own.clone());
        let Open { closed, is_known } = own;
        let service = TowerToHyperService::new(routes.clone());
        let watcher = graceful.watcher();
        let connection = async move {
            let stream = stream.ready().await?;
            if let Either::Right(_) = &stream {
                is_known.cancel();
            }
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(false)
                .header_read_timeout(HEAD_TIMEOUT)
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            watcher.watch(connection).await.map_err(io::Error::other)
        };
        connections.spawn(async move {
            let _ends = closed.clone().drop_guard();
            tokio::select! {
                ended = connection => if let Err(error) = ended {
                    tracing::debug!(%error, "a connection to the endpoint failed");
                },
                () = closed.cancelled() => {}
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
