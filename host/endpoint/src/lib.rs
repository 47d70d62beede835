//! HTTP server for the diagnostics of a process: HTTP/1.1, one request per connection, bounded in number, size and
//! time; optionally with TLS.
//!
//! Knows neither the served paths nor the origin of TLS certificates.

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

/// Time limit for the TLS handshake, and for the head of a request.
pub const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
/// Time limit of a connection, which serves one request. Closes it even if the client has not read the answer.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of open connections of one listener. A further one closes the oldest, so that idle clients and slow readers
/// block no other client; with TLS the oldest without a completed handshake, if there is one. A large document may be in
/// transfer on each connection.
pub const MAX_CONNECTIONS: usize = 16;
/// Time limit of the shutdown for requests in progress.
pub const DRAIN: Duration = Duration::from_secs(2);
/// Maximum size of a request's head, in bytes.
pub const HEAD_BYTES: usize = 16 << 10;
/// Delay after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(100);

/// Listener of the server.
#[derive(Debug)]
pub enum Listener {
    /// TCP, open to every client that reaches the address.
    Tcp(TcpListener),
    /// TCP with TLS. Connections use the newest configuration, which has the certificate and the rules for clients, and
    /// are closed while there is none.
    Tls(TcpListener, watch::Receiver<Tls>),
    /// Unix socket, open to every client with access to the file.
    Unix(UnixListener),
}

/// Configuration of TLS, if there is one yet.
type Tls = Option<Arc<ServerConfig>>;

/// Connection from which nothing has been read, and the configuration if TLS is used.
type Accepted = (Either<TcpStream, UnixStream>, Option<Tls>);

/// Connection that is ready for requests.
type Stream = Either<Either<TcpStream, UnixStream>, TlsStream<Either<TcpStream, UnixStream>>>;

impl Listener {
    /// Accepts the next connection. Uses a reserved file descriptor if no other is free, so that the status can be read
    /// even then.
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
                .map_ok(|(stream, _)| (Either::Left(stream), None)),
            Self::Tls(listener, tls) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| (Either::Left(stream), Some(tls.borrow().clone()))),
            Self::Unix(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| (Either::Right(stream), None)),
        }
    }
}

/// Completes the TLS handshake, if any.
async fn ready((stream, tls): Accepted) -> io::Result<Stream> {
    let Some(tls) = tls else {
        return Ok(Either::Left(stream));
    };
    let tls = tls.ok_or_else(|| io::Error::other("there is no certificate yet"))?;
    let handshake = TlsAcceptor::from(tls).accept(stream);
    Ok(Either::Right(timeout(HEAD_TIMEOUT, handshake).await??))
}

/// Open connection.
#[derive(Debug, Clone, Default)]
struct Open {
    /// Token that is cancelled when the connection ends, or to end it.
    closed: CancellationToken,
    /// Token that is cancelled after the TLS handshake.
    is_known: CancellationToken,
}

/// Serves until `shutdown`, with at most [`MAX_CONNECTIONS`]. Then answers requests in progress within [`DRAIN`].
pub async fn serve(listener: Listener, routes: Router, shutdown: CancellationToken) {
    serve_up_to(MAX_CONNECTIONS, listener, routes, shutdown).await;
}

/// Serves at most `most` connections at a time.
///
/// Does not use `axum::serve`, which would require a listener and a stream of our own for the limit, the timeouts and
/// the reserve.
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
                    // Not even a reserved descriptor is free: wait for a connection to end.
                    tracing::debug!(%error, "the endpoint cannot accept a connection");
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let own = Open::default();
        open.retain(|one| !one.closed.is_cancelled());
        if open.len() >= most {
            // Clients without a completed handshake must not displace those with one.
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
            let stream = ready(stream).await?;
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
    // Do not wait for clients that do not read their answers.
    let _ = timeout(DRAIN, graceful.shutdown()).await;
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
