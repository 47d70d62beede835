//! The session task: one Configuration × one source, called as long as the discovery task orders it.
//!
//! Only one session of the pair is open at a time, because one task opens them one after the other.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::Handler;
use leafhost_core::session::{CallStats, Outcome, Report, SessionSpec};
use leafhost_core::timeouts;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::registry::HandlerKey;

/// Configuration and the handler that serves it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SessionId {
    pub configuration: ConfigurationKey,
    pub handler: HandlerKey,
}

/// Order for a session task.
#[derive(Debug)]
pub(super) struct SessionCommand {
    /// Number returned with every answer, so that answers to an older order are recognized.
    pub generation: u64,
    pub handler: Arc<dyn Handler>,
    pub spec: SessionSpec,
}

/// Answer of a session task.
#[derive(Debug)]
pub(super) struct Answer {
    pub id: SessionId,
    pub generation: u64,
    pub report: Box<Report>,
}

/// Runs until the sender of orders is dropped.
pub(super) async fn run(
    id: SessionId,
    mut orders: watch::Receiver<Arc<SessionCommand>>,
    answers: mpsc::Sender<Answer>,
) {
    loop {
        let order = Arc::clone(&orders.borrow_and_update());
        tokio::select! {
            biased;
            changed = orders.changed() => if changed.is_err() {
                return;
            },
            () = serve(&id, &order, &answers) => return,
        }
    }
}

/// Serves one order; returns when the receiver of answers is gone.
async fn serve(id: &SessionId, order: &SessionCommand, answers: &mpsc::Sender<Answer>) {
    let say = async |report| {
        let answer = Answer {
            id: id.clone(),
            generation: order.generation,
            report: Box::new(report),
        };
        answers.send(answer).await.is_ok()
    };
    let validated = |outcome, wall| {
        let call = CallStats {
            events: vec!["validate"],
            wall,
            ..CallStats::default()
        };
        Report::new(outcome, call)
    };
    let mut failures = 0;
    loop {
        let started = Instant::now();
        let result = order.handler.validate(&order.spec.details).await;
        let took = started.elapsed();
        match result {
            Ok(problems) if problems.is_empty() => break,
            Ok(problems) => {
                // The details belong to this order: nothing can be done before the next one.
                if say(validated(Outcome::InvalidDetails(problems), took)).await {
                    answers.closed().await;
                }
                return;
            }
            Err(fault) => {
                failures += 1;
                if !say(validated(Outcome::Faulted(fault), took)).await {
                    return;
                }
                tokio::time::sleep(rest(failures, took)).await;
            }
        }
    }
    let mut session = order.handler.open(order.spec.clone());
    loop {
        let report = session.next().await;
        if !say(report).await {
            return;
        }
    }
}

/// Returns the pause after a failure. It limits failing calls to a hundredth of a core, because the wall clock time `took` bounds the CPU
/// time.
fn rest(failures: u32, took: Duration) -> Duration {
    backoff::wait(failures).max((took * 100).min(timeouts::BACKOFF_LAST))
}
