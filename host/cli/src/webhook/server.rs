//! The server that the API server posts Configurations to.

use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use axum_server::Handle;
use axum_server::tls_rustls::RustlsConfig;
use leafhost_agent::loader::HandlerSet;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::text;
use leafhost_k8s::admission::{NameCheck, Review};
use leafhost_k8s::serving::Serving;
use rustls::ServerConfig;
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;

/// The most bytes of a request: the API server takes objects of 3 MiB, and posts the one before with the new one.
const MOST_BYTES: usize = 8 << 20;
/// How many requests are answered at once.
const AT_ONCE: usize = 8;
/// How long the API server may take to post a request.
const READING: Duration = Duration::from_secs(3);
/// How long a handler may take to validate details. The API server waits for ten seconds.
const VALIDATION: Duration = Duration::from_secs(5);
/// How long requests that are under way may take when the webhook stops.
const LAST: Duration = Duration::from_secs(5);
const DETAILS: &str = "spec.discoveryHandler.discoveryDetails";

/// The server, bound to its address.
pub struct Server {
    listener: TcpListener,
    config: RustlsConfig,
    routes: Router,
}

struct Shared {
    certificate: watch::Receiver<Option<Serving>>,
    handlers: watch::Receiver<Arc<HandlerSet>>,
    names: Option<NameCheck>,
    slots: Semaphore,
}

/// Gives each connection the certificate of the moment.
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

impl Server {
    /// Binds the address. Until there is a certificate each connection is ended.
    pub fn bind(
        address: SocketAddr,
        certificate: watch::Receiver<Option<Serving>>,
        handlers: watch::Receiver<Arc<HandlerSet>>,
        names: NameCheck,
    ) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .with_context(|| format!("cannot listen on {address}; choose another with --listen"))?;
        listener
            .set_nonblocking(true)
            .context("cannot prepare the listener")?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .context("cannot set up TLS")?
            .with_no_client_auth()
            .with_cert_resolver(Arc::new(Certificate(certificate.clone())));
        let shared = Arc::new(Shared {
            certificate,
            handlers,
            names: Some(names),
            slots: Semaphore::new(AT_ONCE),
        });
        let routes = Router::new()
            .route("/validate", post(validate))
            .route("/readyz", get(ready))
            .with_state(shared);
        Ok(Self {
            listener,
            config: RustlsConfig::from_config(Arc::new(tls)),
            routes,
        })
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: impl Future<Output = ()>) -> Result<()> {
        let handle = Handle::new();
        let server = axum_server::from_tcp_rustls(self.listener, self.config)
            .context("cannot serve on the address")?
            .handle(handle.clone())
            .serve(self.routes.into_make_service());
        tokio::pin!(server);
        tokio::select! {
            ended = &mut server => return ended.context("the server ended"),
            () = stop => handle.graceful_shutdown(Some(LAST)),
        }
        server.await.context("the server ended")
    }
}

/// Ready is a webhook that the API server trusts.
async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, &'static str) {
    let serving = shared.certificate.borrow();
    if serving.as_ref().is_some_and(|serving| serving.is_told) {
        (StatusCode::OK, "ok")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "there is no ValidatingWebhookConfiguration",
        )
    }
}

async fn validate(State(shared): State<Arc<Shared>>, body: Body) -> Response {
    let Ok(_slot) = shared.slots.acquire().await else {
        return StatusCode::SERVICE_UNAVAILABLE.into_response();
    };
    // Only then is it read: what waits takes no memory.
    let Ok(Ok(body)) = timeout(READING, to_bytes(body, MOST_BYTES)).await else {
        return StatusCode::BAD_REQUEST.into_response();
    };
    let review = match Review::read(&body) {
        Ok(review) => review,
        Err(error) => return (StatusCode::BAD_REQUEST, error.to_string()).into_response(),
    };
    let mut problems = review.problems();
    let mut warnings = Vec::new();
    if let Some(names) = &shared.names {
        let name = names.check(&review).await;
        problems.extend(name.problem);
        warnings.extend(name.warning);
    }
    if let Some((name, details)) = review.details() {
        let set = Arc::clone(&shared.handlers.borrow());
        let handlers = set.by_name();
        if let Some(handler) = handlers.get(name) {
            match timeout(VALIDATION, handler.validate(details)).await {
                Ok(Ok(wrong)) => problems.extend(wrong.iter().map(at_details)),
                Ok(Err(fault)) => {
                    warnings.push(format!(
                        "{DETAILS}: not checked: the handler failed: {fault}"
                    ));
                }
                Err(_) => warnings.push(format!(
                    "{DETAILS}: not checked: the handler took longer than {} s",
                    VALIDATION.as_secs()
                )),
            }
        } else if !set.complete {
            warnings.push(format!(
                "{DETAILS}: not checked: the webhook still loads handlers; apply it again in a minute"
            ));
        } else if let Some(meant) = text::nearest(name, handlers.keys().copied()) {
            // It may be one that registers on a node, so it is no problem.
            warnings.push(format!(
                "spec.discoveryHandler.name: no handler {name:?} is known here; did you mean {meant}?"
            ));
        }
    }
    Json(review.answer(&problems, warnings)).into_response()
}

fn at_details(wrong: &FieldProblem) -> String {
    match wrong.path.as_str() {
        "" => format!("{DETAILS}: {}", wrong.message),
        path => format!("{DETAILS}: {path}: {}", wrong.message),
    }
}

#[cfg(test)]
mod tests;
