//! HTTP routes of the extender.

use std::sync::Arc;

use axum::extract::{DefaultBodyLimit, State};
use axum::http::{StatusCode, header};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use leafhost_core::scheduling::BindingArgs;
use leafhost_metrics::CONTENT_TYPE;

use crate::extender::Args;
use crate::scheduler::Scheduler;

/// Maximum size of a request body, in bytes: a pod of 1 MiB and the names of all nodes.
const LARGEST: usize = 4 << 20;

/// Returns the routes for a scheduler: `/filter`, `/prioritize` and `/bind`.
pub fn routes(scheduler: Arc<Scheduler>) -> Router {
    Router::new()
        .route("/filter", post(filter))
        .route("/prioritize", post(prioritize))
        .route("/bind", post(bind))
        .layer(DefaultBodyLimit::max(LARGEST))
        .with_state(scheduler)
}

/// Returns the routes for operators: `/healthz` and `/metrics`.
pub fn public_routes(scheduler: Arc<Scheduler>) -> Router {
    Router::new()
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .with_state(scheduler)
}

type Extender = State<Arc<Scheduler>>;

async fn filter(State(scheduler): Extender, Json(args): Json<Args>) -> impl IntoResponse {
    Json(scheduler.filter(args))
}

async fn prioritize(State(scheduler): Extender, Json(args): Json<Args>) -> impl IntoResponse {
    Json(scheduler.prioritize(args))
}

async fn bind(State(scheduler): Extender, Json(args): Json<BindingArgs>) -> impl IntoResponse {
    Json(scheduler.bind(args).await)
}

async fn healthz(State(scheduler): Extender) -> impl IntoResponse {
    if scheduler.is_ready() {
        (StatusCode::OK, "ok\n")
    } else {
        let text = "the Instances and pods of the cluster are not read yet\n";
        (StatusCode::SERVICE_UNAVAILABLE, text)
    }
}

async fn metrics(State(scheduler): Extender) -> impl IntoResponse {
    let text = scheduler.metrics.render();
    ([(header::CONTENT_TYPE, CONTENT_TYPE)], text)
}
