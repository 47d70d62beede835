//! Server to which the API server posts objects: Configurations, and the objects that the controller makes from them.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use leafhost_core::configuration::details_problem;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::text;
use leafhost_discovery::loader::HandlerSet;
use leafhost_endpoint::{Bounds, Connection, Listener};
use leafhost_k8s::Origins;
use leafhost_k8s::admission::Review;
use leafhost_k8s::serving::Serving;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;

mod controller;
mod fair_queue;
mod requests;
mod tls;

use fair_queue::FairQueue;
use requests::{ENDED, RequestGuard, Requests};

pub const BOUNDS: Bounds = Bounds {
    connections: 256,
    head: Duration::from_secs(5),
    // The API server ends its connections after 90 s without a request.
    another: Some(Duration::from_secs(100)),
    drain: Duration::from_secs(5),
};

/// Maximum number of bytes in a request: the API server accepts objects of up to 3 MiB, and posts the old object with the
/// new one.
const MOST_BYTES: usize = 8 << 20;
/// Maximum number of bytes in all requests together.
const ALL_BYTES: usize = 32 << 20;
/// Maximum number of requests parsed at once.
const PARSED: usize = 2;
/// Time limit for the API server to post a request.
const READING: Duration = Duration::from_secs(3);
/// Maximum number of details validated at once, one for each namespace of a peer.
const AT_ONCE: usize = 4;
/// Maximum time that details wait for other details to be validated.
const WAITING: Duration = Duration::from_secs(4);
/// Time limit for a handler to validate details. The API server waits ten seconds for the whole answer.
const VALIDATION: Duration = Duration::from_secs(1);
const DETAILS: &str = "spec.discoveryHandler.discoveryDetails";

struct Shared {
    certificate: watch::Receiver<Option<Serving>>,
    /// True if only clients with a certificate may have objects reviewed.
    demands_client: bool,
    handlers: watch::Receiver<Arc<HandlerSet>>,
    /// Lookup of the reservations of names.
    names: Option<Origins>,
    requests: Arc<Requests>,
    parsing: Semaphore,
    details: Arc<FairQueue>,
}

/// Returns the listener and its routes. Closes each connection while there is no certificate. With `client_ca`, reviews objects only for clients
/// with a certificate of this CA.
pub fn open(
    socket: TcpListener,
    client_ca: Option<&[u8]>,
    certificate: watch::Receiver<Option<Serving>>,
    handlers: watch::Receiver<Arc<HandlerSet>>,
    origins: Origins,
) -> Result<(Listener, Router)> {
    let tls = tls::config(certificate.clone(), client_ca).context("cannot set up TLS")?;
    let listener = Listener::Tls(socket, watch::channel(Some(tls)).1);
    let names = Some(origins.clone());
    let shared = Shared::new(certificate, client_ca.is_some(), handlers, names);
    let routes = routes(&shared).merge(controller::routes(shared, origins));
    Ok((listener, routes))
}

fn routes(shared: &Arc<Shared>) -> Router {
    Router::new()
        .route("/validate", post(validate))
        .route("/readyz", get(ready))
        .with_state(Arc::clone(shared))
}

/// Reports ready once the API server trusts the webhook's certificate.
async fn ready(State(shared): State<Arc<Shared>>) -> (StatusCode, &'static str) {
    let serving = shared.certificate.borrow();
    if serving.as_ref().is_some_and(|serving| serving.is_published) {
        (StatusCode::OK, "ok")
    } else {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "there is no ValidatingWebhookConfiguration",
        )
    }
}

impl Shared {
    fn new(
        certificate: watch::Receiver<Option<Serving>>,
        demands_client: bool,
        handlers: watch::Receiver<Arc<HandlerSet>>,
        names: Option<Origins>,
    ) -> Arc<Self> {
        Arc::new(Self {
            certificate,
            demands_client,
            handlers,
            names,
            requests: Requests::new(ALL_BYTES),
            parsing: Semaphore::new(PARSED),
            details: FairQueue::new(AT_ONCE),
        })
    }

    /// Reads a review from a caller that may request one, and converts it with `make` on a blocking thread, where that
    /// delays no other task.
    async fn question<T: Send + 'static>(
        &self,
        caller: &Connection,
        body: Body,
        make: impl FnOnce(Review) -> T + Send + 'static,
    ) -> Result<(T, RequestGuard), Box<Response>> {
        let refused = |code: StatusCode, why: String| Err(Box::new((code, why).into_response()));
        if self.demands_client && !caller.is_known() {
            let why = "a client certificate of a CA in --client-ca is needed";
            return refused(StatusCode::UNAUTHORIZED, why.to_owned());
        }
        let read = timeout(READING, self.requests.read(caller, body, MOST_BYTES)).await;
        let (bytes, request) = match read.unwrap_or(Err(ENDED)) {
            Ok(read) => read,
            Err(why) => return refused(StatusCode::BAD_REQUEST, why.to_owned()),
        };
        let result = {
            let _parses = self.parsing.acquire().await;
            spawn_blocking(move || Review::read(&bytes).map(make)).await
        };
        request.release();
        match result {
            Ok(Ok(question)) => Ok((question, request)),
            Ok(Err(why)) => refused(StatusCode::BAD_REQUEST, why),
            Err(error) => {
                tracing::error!(%error, "reading a review panicked; this is a bug");
                refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
        }
    }
}

struct ConfigurationReview {
    review: Review,
    /// Name of the Configuration, if it is new.
    created: Option<ConfigurationKey>,
    problems: Vec<String>,
    warnings: Vec<String>,
    /// Handler name and details, unless the handler need not validate them.
    details: Option<(String, String)>,
}

impl ConfigurationReview {
    /// Keeps only the parts of a review that the answer needs.
    fn of(mut review: Review) -> Self {
        let mut problems = review.problems();
        let details = review.details().and_then(|(name, details)| {
            if let Some(problem) = details_problem(details) {
                problems.push(format!("{DETAILS}: {problem}"));
                return None;
            }
            Some((name.to_owned(), details.to_owned()))
        });
        let created = review.created();
        let warnings = review.warnings();
        review.forget_objects();
        Self {
            review,
            created,
            problems,
            warnings,
            details,
        }
    }
}

async fn validate(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Connection>,
    body: Body,
) -> Response {
    let (asked, _whole) = match shared
        .question(&caller, body, ConfigurationReview::of)
        .await
    {
        Ok(asked) => asked,
        Err(answer) => return *answer,
    };
    let mut problems = asked.problems;
    let mut warnings = asked.warnings;
    if let (Some(names), Some(key)) = (&shared.names, &asked.created) {
        match names.check_name(key).await {
            Ok(problem) => problems.extend(problem),
            Err(warning) => warnings.push(warning),
        }
    }
    if let Some((name, details)) = &asked.details {
        let set = Arc::clone(&shared.handlers.borrow());
        let handlers = set.by_name();
        if let Some(handler) = handlers.get(name.as_str()) {
            let client = (caller.peer, asked.review.namespace().to_owned());
            let Ok(_permit) = timeout(WAITING, shared.details.acquire(client)).await else {
                warnings.push(format!(
                    "{DETAILS}: not checked: others of the namespace are checked; apply it again in a minute"
                ));
                return Json(asked.review.answer(&problems, warnings)).into_response();
            };
            match timeout(VALIDATION, handler.validate(details)).await {
                Ok(Ok(wrong)) => {
                    problems.extend(wrong.iter().map(|wrong| format!("{DETAILS}: {wrong}")));
                }
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
        } else if let Some(suggestion) = text::nearest(name, handlers.keys().copied()) {
            // The handler may be one that registers on a node, so this is only a warning.
            warnings.push(format!(
                "spec.discoveryHandler.name: no handler {name:?} is known here; did you mean {suggestion}?"
            ));
        }
    }
    Json(asked.review.answer(&problems, warnings)).into_response()
}

#[cfg(test)]
mod tests;
