//! The server that the API server posts objects to: Configurations, and what the controller makes of them.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use leafhost_core::configuration::{FieldProblem, details_problem};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::text;
use leafhost_discovery::loader::HandlerSet;
use leafhost_k8s::Origins;
use leafhost_k8s::admission::{NameCheck, Review};
use leafhost_k8s::serving::Serving;
use tokio::sync::{Semaphore, watch};
use tokio::task::spawn_blocking;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

mod connections;
mod controller;
mod listener;
mod turns;

use connections::{Connections, Unread, Whole};
use listener::{Caller, Listener};
use turns::Turns;

/// The most bytes of a request: the API server takes objects of 3 MiB, and posts the one before with the new one.
const MOST_BYTES: usize = 8 << 20;
/// The most bytes of all requests together.
const ALL_BYTES: usize = 32 << 20;
/// The most open connections.
const CONNECTIONS: usize = 256;
/// How many requests are parsed at once.
const PARSED: usize = 2;
/// How long the API server may take to post a request.
const READING: Duration = Duration::from_secs(3);
/// How many handlers validate at once, one for each namespace.
const AT_ONCE: usize = 4;
/// How long details may wait until those before them in their namespace have been validated.
const WAITING: Duration = Duration::from_secs(4);
/// How long a handler may take to validate details. The API server waits for ten seconds for all of it.
const VALIDATION: Duration = Duration::from_secs(1);
const DETAILS: &str = "spec.discoveryHandler.discoveryDetails";

/// The server, bound to its address.
pub struct Server {
    listener: Listener,
    routes: Router,
}

struct Shared {
    certificate: watch::Receiver<Option<Serving>>,
    handlers: watch::Receiver<Arc<HandlerSet>>,
    names: Option<NameCheck>,
    parsing: Semaphore,
    details: Arc<Turns>,
}

impl Server {
    /// Makes the server. Until there is a certificate each connection is ended. With a CA only who has a certificate of it is answered.
    pub fn new(
        listener: TcpListener,
        client_ca: Option<&[u8]>,
        certificate: watch::Receiver<Option<Serving>>,
        handlers: watch::Receiver<Arc<HandlerSet>>,
        origins: Origins,
        names: NameCheck,
    ) -> Result<Self> {
        let connections = Connections::new(CONNECTIONS, ALL_BYTES);
        let listener = Listener::new(listener, connections, certificate.clone(), client_ca)
            .context("cannot set up TLS")?;
        let shared = Shared::new(certificate, handlers, Some(names));
        let routes = routes(&shared).merge(controller::routes(shared, origins));
        Ok(Self { listener, routes })
    }

    /// Serves until `stop`.
    pub async fn run(self, stop: CancellationToken) {
        self.listener.run(self.routes, stop).await;
    }
}

fn routes(shared: &Arc<Shared>) -> Router {
    Router::new()
        .route("/validate", post(validate))
        .route("/readyz", get(ready))
        .with_state(Arc::clone(shared))
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

impl Shared {
    fn new(
        certificate: watch::Receiver<Option<Serving>>,
        handlers: watch::Receiver<Arc<HandlerSet>>,
        names: Option<NameCheck>,
    ) -> Arc<Self> {
        Arc::new(Self {
            certificate,
            handlers,
            names,
            parsing: Semaphore::new(PARSED),
            details: Turns::new(AT_ONCE),
        })
    }

    /// Reads the question, of a caller that may ask, and makes something of it where it delays no other task.
    async fn question<'a, T: Send + 'static>(
        &self,
        caller: &'a Caller,
        body: Body,
        make: impl FnOnce(Review) -> T + Send + 'static,
    ) -> Result<(T, Whole<'a>), Box<Response>> {
        let refused = |code: StatusCode, why: String| Err(Box::new((code, why).into_response()));
        if !caller.may_ask {
            let why = "a client certificate is needed; --client-ca says of which CA";
            return refused(StatusCode::UNAUTHORIZED, why.to_owned());
        }
        let read = timeout(READING, caller.place.read(body, MOST_BYTES)).await;
        let mut whole = match read.unwrap_or(Err(Unread::Ended)) {
            Ok(whole) => whole,
            Err(why) => return refused(StatusCode::BAD_REQUEST, why.to_string()),
        };
        let result = {
            let _parses = self.parsing.acquire().await;
            let bytes = whole.take();
            spawn_blocking(move || Review::read(&bytes).map(make)).await
        };
        whole.release();
        match result {
            Ok(Ok(question)) => Ok((question, whole)),
            Ok(Err(error)) => refused(StatusCode::BAD_REQUEST, error.to_string()),
            Err(error) => {
                tracing::error!(%error, "reading a review panicked; this is a bug");
                refused(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
            }
        }
    }
}

/// A question about a Configuration.
struct Asked {
    review: Review,
    /// The Configuration, if it is new.
    created: Option<ConfigurationKey>,
    problems: Vec<String>,
    /// The handler's name and the details that are for it, unless they need not be shown to it.
    details: Option<(String, String)>,
}

impl Asked {
    /// Keeps of a review what the answer is made of.
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
        review.forget_objects();
        Self {
            review,
            created,
            problems,
            details,
        }
    }
}

async fn validate(
    State(shared): State<Arc<Shared>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    let (asked, _whole) = match shared.question(&caller, body, Asked::of).await {
        Ok(asked) => asked,
        Err(answer) => return *answer,
    };
    let mut problems = asked.problems;
    let mut warnings = Vec::new();
    if let Some(names) = &shared.names {
        let name = names.check(asked.created.as_ref()).await;
        problems.extend(name.problem);
        warnings.extend(name.warning);
    }
    if let Some((name, details)) = &asked.details {
        let set = Arc::clone(&shared.handlers.borrow());
        let handlers = set.by_name();
        if let Some(handler) = handlers.get(name.as_str()) {
            let party = caller.party(asked.review.namespace());
            let Ok(_turn) = timeout(WAITING, shared.details.turn(party)).await else {
                warnings.push(format!(
                    "{DETAILS}: not checked: others of the namespace are checked; apply it again in a minute"
                ));
                return Json(asked.review.answer(&problems, warnings)).into_response();
            };
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
    Json(asked.review.answer(&problems, warnings)).into_response()
}

fn at_details(wrong: &FieldProblem) -> String {
    match wrong.path.as_str() {
        "" => format!("{DETAILS}: {}", wrong.message),
        path => format!("{DETAILS}: {path}: {}", wrong.message),
    }
}

#[cfg(test)]
mod tests;
