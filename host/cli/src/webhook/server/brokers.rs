//! Answers whether a pod, job or service that the controller writes is the one that a Configuration asks for.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use leafhost_controller::brokers::Written;
use leafhost_k8s::Origins;
use leafhost_k8s::admission::{Broker, Review};
use tokio::time::timeout;

use super::Shared;
use super::listener::Caller;
use super::turns::Turns;

/// How long the API server may take to say what there is. It waits for ten seconds for the answer.
const LOOKING: Duration = Duration::from_secs(5);
/// How many objects are looked at at once, one for each namespace.
const AT_ONCE: usize = 4;
const REMEDY: &str = "the controller writes what Configurations ask for and nothing else; if another webhook or plugin of this cluster \
    changes pods or services, set webhookConfiguration.brokers.enabled=false";

/// A question about an object of a broker.
struct Asked {
    review: Review,
    broker: Option<Broker>,
}

impl Asked {
    fn of(mut review: Review) -> Self {
        let broker = review.broker();
        review.forget_objects();
        Self { review, broker }
    }
}

/// What the answers are made with.
struct Brokers {
    shared: Arc<Shared>,
    origins: Origins,
    turns: Arc<Turns>,
}

/// Returns the path at which the API server asks.
pub fn routes(shared: Arc<Shared>, origins: Origins) -> Router {
    let brokers = Brokers {
        shared,
        origins,
        turns: Turns::new(AT_ONCE),
    };
    Router::new()
        .route("/validate-broker", post(validate))
        .with_state(Arc::new(brokers))
}

async fn validate(
    State(brokers): State<Arc<Brokers>>,
    Extension(caller): Extension<Caller>,
    body: Body,
) -> Response {
    let (Asked { review, broker }, _whole) =
        match brokers.shared.question(&caller, body, Asked::of).await {
            Ok(asked) => asked,
            Err(answer) => return *answer,
        };
    let Some(broker) = broker else {
        return Json(review.answer(&[], Vec::new())).into_response();
    };
    let looked = async {
        let _turn = brokers.turns.turn(caller.party(review.namespace())).await;
        look(&brokers.origins, &broker).await
    };
    let problem = match timeout(LOOKING, looked).await {
        Ok(Ok(problem)) => problem,
        Ok(Err(error)) => return (StatusCode::INTERNAL_SERVER_ERROR, error).into_response(),
        Err(_) => {
            let why = "the API server does not say in time what there is";
            return (StatusCode::INTERNAL_SERVER_ERROR, why).into_response();
        }
    };
    let problems: Vec<_> = problem
        .map(|problem| format!("{problem}; {REMEDY}"))
        .into_iter()
        .collect();
    Json(review.answer(&problems, Vec::new())).into_response()
}

/// Returns what is wrong with an object; an error if it cannot be told.
async fn look(origins: &Origins, broker: &Broker) -> Result<Option<String>, String> {
    let written = Written {
        kind: broker.kind,
        object: &broker.object,
        before: broker.before.as_ref(),
    };
    let named = match written.owner() {
        Ok(named) => named,
        Err(problem) => return Ok(Some(problem)),
    };
    let (mut instance, mut configuration) = (None, Some(named.name.clone()));
    if named.is_instance {
        instance = origins.instance(&named.namespace, &named.name).await?;
        let of = instance
            .as_ref()
            .map(|instance| &instance.spec.configuration_name);
        configuration = of.cloned();
    }
    let manifest = match &configuration {
        Some(name) => origins.configuration(&named.namespace, name).await?,
        None => None,
    };
    Ok(written.review(instance.as_ref(), manifest.as_ref()).err())
}
