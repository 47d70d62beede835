//! HTTP/1.1 server, optionally with TLS, for the diagnostics of a process, an extender or a webhook. Bounds the number
//! of connections, the size of the head of a request, and the time that clients take.
//!
//! Knows neither the served paths nor the origin of TLS certificates.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::future::poll_fn;
use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service as _, service_fn};
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
/// Time limit of a connection that serves one request: it is closed even if the client has not read the answer.
pub const CONNECTION_TIMEOUT: Duration = Duration::from_secs(90);
/// Maximum number of open connections of one listener. A large document may be in transfer on each connection.
pub const MAX_CONNECTIONS: usize = 16;
/// Maximum time that the shutdown waits for requests in progress.
pub const DRAIN: Duration = Duration::from_secs(2);
/// Maximum size of a request's head, in bytes.
pub const HEAD_BYTES: usize = 16 << 10;
/// Delay after a failed `accept`.
const PAUSE: Duration = Duration::from_millis(100);

/// Bounds of a server.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Maximum number of open connections. A further one closes another, so that idle clients and slow readers block no
    /// other client: preferably one without a client certificate; among those, one of the peer with the most
    /// connections; among those, one without a complete request; among those, the oldest.
    pub connections: usize,
    /// Time limit for the TLS handshake; the head of the first request has as much time again.
    pub head: Duration,
    /// Keep-alive timeout: time limit for the head of each further request on a connection. `None` serves one request
    /// per connection, within [`CONNECTION_TIMEOUT`].
    pub another: Option<Duration>,
    /// Maximum time that the shutdown waits for requests in progress.
    pub drain: Duration,
}

impl Bounds {
    /// Bounds of an endpoint for diagnostics.
    pub const DIAGNOSTICS: Self = Self {
        connections: MAX_CONNECTIONS,
        head: HEAD_TIMEOUT,
        another: None,
        drain: DRAIN,
    };
}

/// Listener of the server.
#[derive(Debug)]
pub enum Listener {
    /// TCP, open to every client that reaches the address.
    Tcp(TcpListener),
    /// TCP with TLS. A new connection uses the newest configuration, which has the certificate and the rules for client
    /// certificates; it is closed if there is none.
    Tls(TcpListener, Tls),
    /// Unix socket, open to every client with access to the file.
    Unix(UnixListener),
}

/// Newest TLS configuration, if there is one.
type Tls = watch::Receiver<Option<Arc<ServerConfig>>>;
/// Connection from which nothing has been read.
type Accepted = Either<TcpStream, UnixStream>;
/// Connection that is ready for requests.
type Stream = Either<Accepted, TlsStream<Accepted>>;

impl Listener {
    /// Accepts the next connection and returns it with the address of its client. Uses a reserved file descriptor if no
    /// other is free, so that the status can be read even then.
    async fn accept(&self) -> io::Result<(Accepted, Option<IpAddr>)> {
        poll_fn(|context| match self.poll_accept(context) {
            // Most likely no file descriptor is free.
            Poll::Ready(Err(_)) => fd_reserve::lend(|| self.poll_accept(context)),
            accepted => accepted,
        })
        .await
    }

    fn poll_accept(
        &self,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<(Accepted, Option<IpAddr>)>> {
        match self {
            Self::Tcp(listener) | Self::Tls(listener, _) => listener
                .poll_accept(context)
                .map_ok(|(stream, peer)| (Either::Left(stream), Some(peer.ip()))),
            Self::Unix(listener) => listener
                .poll_accept(context)
                .map_ok(|(stream, _)| (Either::Right(stream), None)),
        }
    }
}

/// Completes the TLS handshake, if any, within `limit`.
async fn ready(stream: Accepted, tls: Option<Tls>, limit: Duration) -> io::Result<Stream> {
    let Some(tls) = tls else {
        return Ok(Either::Left(stream));
    };
    let tls = tls.borrow().clone();
    let tls = tls.ok_or_else(|| io::Error::other("there is no certificate yet"))?;
    let handshake = TlsAcceptor::from(tls).accept(stream);
    Ok(Either::Right(timeout(limit, handshake).await??))
}

/// Open connection; inserted into the extensions of each of its requests.
#[derive(Debug, Clone, Default)]
pub struct Connection {
    /// Address of the client; `None` on a Unix socket.
    pub peer: Option<IpAddr>,
    /// Token that is cancelled when the connection ends, or to end it.
    closed: CancellationToken,
    /// Token that is cancelled once the client has shown a certificate.
    is_known: CancellationToken,
    /// Token that is cancelled once the head of a request has arrived.
    has_asked: CancellationToken,
    is_whole: Arc<AtomicBool>,
}

impl Connection {
    /// Creates a connection that has just been opened.
    pub fn new(peer: Option<IpAddr>) -> Self {
        Self {
            peer,
            ..Self::default()
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.closed.cancel();
    }

    /// Returns true if the connection has ended, or is to end.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Returns true if the client has shown a certificate that the TLS configuration accepts.
    pub fn is_known(&self) -> bool {
        self.is_known.is_cancelled()
    }

    /// Returns true while a request has arrived completely and has not been answered.
    pub fn is_whole(&self) -> bool {
        self.is_whole.load(Ordering::Relaxed)
    }

    /// Sets the value that [`is_whole`](Self::is_whole) returns.
    pub fn set_whole(&self, is_whole: bool) {
        self.is_whole.store(is_whole, Ordering::Relaxed);
    }
}

/// Open connections, the oldest first.
#[derive(Debug, Default)]
struct Open(Vec<Connection>);

impl Open {
    /// Adds a connection, and closes another if there would be more than `most`.
    fn add(&mut self, most: usize, new: Connection) {
        self.0.retain(|one| !one.is_closed());
        if self.0.len() >= most {
            let mut counts = HashMap::<_, usize>::new();
            for one in &self.0 {
                *counts.entry(one.peer).or_default() += 1;
            }
            let first = self.0.iter().enumerate().max_by_key(|(place, one)| {
                let count = counts.get(&one.peer);
                (!one.is_known(), count, !one.is_whole(), Reverse(*place))
            });
            if let Some(place) = first.map(|(place, _)| place) {
                self.0.remove(place).close();
            }
        }
        self.0.push(new);
    }
}

/// Serves diagnostics until `shutdown`.
pub async fn serve(listener: Listener, routes: Router, shutdown: CancellationToken) {
    serve_within(Bounds::DIAGNOSTICS, listener, routes, shutdown).await;
}

/// Serves within these bounds until `shutdown`. Then answers requests in progress.
///
/// Does not use `axum::serve`, which would require our own types of listener and stream for the limit of connections,
/// the timeouts and the reserved descriptors.
pub async fn serve_within(
    bounds: Bounds,
    listener: Listener,
    routes: Router,
    shutdown: CancellationToken,
) {
    let mut open = Open::default();
    // True after a failed `accept`, until one succeeds.
    let mut has_failed = false;
    let graceful = GracefulShutdown::new();
    let mut connections = JoinSet::new();
    loop {
        let (stream, peer) = tokio::select! {
            () = shutdown.cancelled() => break,
            Some(_) = connections.join_next() => continue,
            accepted = listener.accept() => match accepted {
                Ok(accepted) => {
                    has_failed = false;
                    accepted
                }
                Err(error) => {
                    // Not even a reserved descriptor is free: wait for a connection to end.
                    if !std::mem::replace(&mut has_failed, true) {
                        tracing::warn!(%error, "cannot accept a connection; retrying");
                    }
                    tokio::time::sleep(PAUSE).await;
                    continue;
                }
            },
        };
        let own = Connection::new(peer);
        open.add(bounds.connections, own.clone());
        let tls = match &listener {
            Listener::Tls(_, tls) => Some(tls.clone()),
            Listener::Tcp(_) | Listener::Unix(_) => None,
        };
        let routes = TowerToHyperService::new(routes.clone());
        let watcher = graceful.watcher();
        let asking = own.clone();
        let served = async move {
            let stream = ready(stream, tls, bounds.head).await?;
            if let Either::Right(stream) = &stream
                && stream.get_ref().1.peer_certificates().is_some()
            {
                asking.is_known.cancel();
            }
            let service = service_fn(move |mut request: Request<Incoming>| {
                asking.has_asked.cancel();
                request.extensions_mut().insert(asking.clone());
                routes.call(request)
            });
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .keep_alive(bounds.another.is_some())
                .header_read_timeout(bounds.another.unwrap_or(bounds.head))
                .max_buf_size(HEAD_BYTES)
                .serve_connection(TokioIo::new(stream), service);
            watcher.watch(connection).await.map_err(io::Error::other)
        };
        connections.spawn(async move {
            let _ends = own.closed.clone().drop_guard();
            let too_slow = async {
                if bounds.another.is_none() {
                    tokio::time::sleep(CONNECTION_TIMEOUT).await;
                } else if timeout(bounds.head * 2, own.has_asked.cancelled())
                    .await
                    .is_ok()
                {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                ended = served => if let Err(error) = ended {
                    tracing::debug!(%error, peer = ?own.peer, "a connection failed");
                },
                () = own.closed.cancelled() => {
                    tracing::debug!(peer = ?own.peer, "closed a connection to accept another");
                }
                () = too_slow => tracing::debug!(peer = ?own.peer, "a client is too slow"),
            }
        });
    }
    drop(listener);
    // Do not wait for clients that do not read their answers.
    let _ = timeout(bounds.drain, graceful.shutdown()).await;
    connections.shutdown().await;
}

#[cfg(test)]
mod tests;
