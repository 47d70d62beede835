//! Accepts TLS connections, and assigns each a place and deadlines.
//!
//! `axum::serve` is not used, since places and deadlines would then need a listener and a stream type of our own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::extract::Request;
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::{Extension, Router};
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use leafhost_k8s::serving::Serving;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;
use rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use rustls::sign::CertifiedKey;
use rustls::{RootCertStore, ServerConfig};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use super::connections::{ConnectionGuard, Connections};
use super::fair_queue::Client;

/// Time limit for the TLS handshake of a client.
const HANDSHAKE: Duration = Duration::from_secs(5);
/// Time limit for the head of a client's first request.
const HEAD: Duration = Duration::from_secs(5);
/// Time limit for the head of another request. The API server ends its connections after 90 s without one.
const ANOTHER: Duration = Duration::from_secs(100);
/// Maximum number of bytes in the head of a request.
const HEAD_BYTES: usize = 16 << 10;
/// Time limit for pending requests when the webhook stops.
const LAST: Duration = Duration::from_secs(5);
/// Pause after a connection could not be accepted.
const PAUSE: Duration = Duration::from_millis(100);

/// Sender of a request.
#[derive(Debug, Clone)]
pub struct Caller {
    pub guard: Arc<ConnectionGuard>,
    /// True if the caller may have objects reviewed.
    pub may_ask: bool,
}

impl Caller {
    /// Returns the client of a review for this namespace.
    pub fn client(&self, namespace: &str) -> Client {
        Client {
            peer: self.guard.peer(),
            namespace: namespace.to_owned(),
        }
    }
}

/// Accepts connections.
pub struct Listener {
    socket: TcpListener,
    connections: Arc<Connections>,
    acceptor: TlsAcceptor,
    demands_client: bool,
}

/// Resolver that uses the current certificate for each connection.
#[derive(Debug)]
struct Certificate(watch::Receiver<Option<Serving>>);

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.0
            .borrow()
            .as_ref()
            .map(|serving| Arc::clone(&serving.key))
    }
}

impl Listener {
    /// Creates a listener from a bound socket. With a CA, given as PEM, only clients with a certificate of it may have
    /// objects reviewed.
    pub fn new(
        socket: TcpListener,
        connections: Arc<Connections>,
        certificate: watch::Receiver<Option<Serving>>,
        client_ca: Option<&[u8]>,
    ) -> Result<Self> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(Arc::clone(&provider))
            .with_safe_default_protocol_versions()?;
        let tls = match client_ca {
            None => tls.with_no_client_auth(),
            Some(pem) => {
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_slice_iter(pem) {
                    let certificate = certificate.context("cannot read a certificate as PEM")?;
                    roots.add(certificate)?;
                }
                let verifier = WebPkiClientVerifier::builder_with_provider(roots.into(), provider)
                    // The kubelet has no certificate when it asks whether the webhook is ready.
                    .allow_unauthenticated()
                    .build()
                    .context("there is no certificate of a CA")?;
                tls.with_client_cert_verifier(verifier)
            }
        };
        let tls = tls.with_cert_resolver(Arc::new(Certificate(certificate)));
        Ok(Self {
            socket,
            connections,
            acceptor: Arc::new(tls).into(),
            demands_client: client_ca.is_some(),
        })
    }

    /// Serves until `stop`. Pending requests are then answered within [`LAST`].
    pub async fn run(self, routes: Router, stop: CancellationToken) {
        let routes = routes.layer(from_fn(note_head));
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                () = stop.cancelled() => break,
                Some(_) = connections.join_next() => {}
                accepted = self.socket.accept() => match accepted {
                    Ok((stream, peer)) => {
                        let connection = Connection {
                            guard: Arc::new(self.connections.open(peer.ip())),
                            acceptor: self.acceptor.clone(),
                            demands_client: self.demands_client,
                            routes: routes.clone(),
                            stop: stop.clone(),
                        };
                        connections.spawn(connection.serve(stream));
                    }
                    Err(error) => {
                        // Usually no file descriptor is free until a connection ends.
                        tracing::warn!(%error, "cannot accept a connection; retrying");
                        sleep(PAUSE).await;
                    }
                },
            }
        }
        drop(self.socket);
        let drained = async { while connections.join_next().await.is_some() {} };
        // A client that does not read its answer is not waited for.
        let _ = timeout(LAST, drained).await;
        connections.shutdown().await;
    }
}

async fn note_head(Extension(caller): Extension<Caller>, request: Request, next: Next) -> Response {
    caller.guard.asks();
    next.run(request).await
}

struct Connection {
    guard: Arc<ConnectionGuard>,
    acceptor: TlsAcceptor,
    demands_client: bool,
    routes: Router,
    stop: CancellationToken,
}

impl Connection {
    async fn serve(self, stream: TcpStream) {
        let guard = Arc::clone(&self.guard);
        let too_slow = async {
            if timeout(HANDSHAKE + HEAD, guard.asked()).await.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        tokio::select! {
            () = guard.closed() => tracing::debug!(peer = %guard.peer(), "closed a connection in favour of another"),
            () = too_slow => tracing::debug!(peer = %guard.peer(), "a client sent no request in time"),
            served = self.http(stream) => if let Err(error) = served {
                tracing::debug!(peer = %guard.peer(), %error, "a connection failed");
            },
        }
    }

    async fn http(self, stream: TcpStream) -> Result<()> {
        let stream = timeout(HANDSHAKE, self.acceptor.accept(stream)).await??;
        let caller = Caller {
            may_ask: !self.demands_client || stream.get_ref().1.peer_certificates().is_some(),
            guard: self.guard,
        };
        let service = TowerToHyperService::new(self.routes.layer(Extension(caller)));
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(ANOTHER)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), service);
        let mut connection = std::pin::pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return Ok(ended?),
            () = self.stop.cancelled() => connection.as_mut().graceful_shutdown(),
        }
        Ok(connection.await?)
    }
}
