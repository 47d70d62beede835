//! Tells the API server whether the objects that the controller writes follow from a Configuration: pods, jobs and services,
//! and the reservations of names.

use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use axum::{Extension, Json, Router};
use leafhost_controller::brokers::BrokerWrite;
use leafhost_endpoint::Connection;
use leafhost_k8s::Origins;
use leafhost_k8s::admission::{Reserved, Review};
use tokio::time::timeout;

use super::Shared;
use super::fair_queue::FairQueue;

/// Time limit for lookups at the API server, which waits ten seconds for the webhook's answer.
const LOOKING: Duration = Duration::from_secs(5);
/// Maximum number of objects reviewed at once, one for each namespace of a peer.
const AT_ONCE: usize = 4;
const RULE: &str = "the controller writes what Configurations ask for and nothing else";
const REMEDY: &str = "if another webhook or plugin of this cluster changes pods or services, set \
    webhookConfiguration.brokers.enabled=false";

/// Object that the controller writes.
enum Object {
    Broker(Box<BrokerWrite>),
    Reserved(Reserved),
}

/// State shared by the reviews.
struct Reviewer {
    shared: Arc<Shared>,
    origins: Origins,
    fair_queue: Arc<FairQueue>,
}

/// Returns the route to which the API server posts reviews.
pub fn routes(shared: Arc<Shared>, origins: Origins) -> Router {
    let reviewer = Reviewer {
        shared,
        origins,
        fair_queue: FairQueue::new(AT_ONCE),
    };
    Router::new()
        .route("/validate-controller", post(validate))
        .with_state(Arc::new(reviewer))
}

async fn validate(
    State(reviewer): State<Arc<Reviewer>>,
    Extension(caller): Extension<Connection>,
    body: Body,
) -> Response {
    let asked = reviewer.shared.question(&caller, body, Object::of).await;
    let ((review, object), _whole) = match asked {
        Ok(asked) => asked,
        Err(answer) => return *answer,
    };
    let Some(object) = object else {
        return Json(review.answer(&[], Vec::new())).into_response();
    };
    let looked = async {
        let client = (caller.peer, review.namespace().to_owned());
        let _permit = reviewer.fair_queue.acquire(client).await;
        object.look(&reviewer.origins).await
    };
    let looked = timeout(LOOKING, looked).await;
    let too_late = || "the API server did not answer in time".to_owned();
    match looked.unwrap_or_else(|_| Err(too_late())) {
        Ok(problem) => Json(review.answer(problem.as_slice(), Vec::new())).into_response(),
        Err(why) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
    }
}

impl Object {
    /// Takes the object out of a review; `None` if there is nothing to check.
    fn of(mut review: Review) -> (Review, Option<Self>) {
        let broker = review.broker().map(|(kind, object, before)| {
            Self::Broker(Box::new(BrokerWrite {
                kind,
                object,
                before,
            }))
        });
        let object = broker.or_else(|| review.reserved().map(Self::Reserved));
        review.forget_objects();
        (review, object)
    }

    /// Returns the reason to refuse the object; an error if it cannot be determined.
    async fn look(&self, origins: &Origins) -> Result<Option<String>, String> {
        match self {
            Self::Broker(broker) => {
                let problem = look_at_broker(origins, broker).await?;
                Ok(problem.map(|problem| format!("{problem}; {RULE}; {REMEDY}")))
            }
            Self::Reserved(reserved) => {
                let problem = reserved.check(origins).await?;
                Ok(problem.map(|problem| format!("{problem}; {RULE}")))
            }
        }
    }
}

async fn look_at_broker(
    origins: &Origins,
    written: &BrokerWrite,
) -> Result<Option<String>, String> {
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
