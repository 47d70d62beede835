//! The session task: one Configuration × one source, called for as long as the discovery task orders it.
//!
//! Only one session of the pair is open at a time, because one task opens them one after the other.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::Fault;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::Handler;
use leafhost_core::session::{Report, SessionSpec};
use leafhost_core::timeouts;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::registry::HandlerKey;

/// A Configuration and the handler it is served by.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct SessionId {
    pub configuration: ConfigurationKey,
    pub handler: HandlerKey,
}

/// What the task is to do.
#[derive(Debug)]
pub(super) struct Order {
    /// Goes with every answer, so that one to an older order is known.
    pub generation: u64,
    pub handler: Arc<dyn Handler>,
    pub spec: SessionSpec,
}

/// What came of it.
#[derive(Debug)]
pub(super) struct Answer {
    pub id: SessionId,
    pub generation: u64,
    pub said: Said,
}

#[derive(Debug)]
pub(super) enum Said {
    /// A call ended.
    Report(Box<Report>),
    /// The handler refuses the details; it is not called.
    Refused(Vec<FieldProblem>),
    /// The handler failed to look at the details.
    NotValidated { fault: Fault, took: Duration },
}

/// Runs until nobody orders any more.
pub(super) async fn run(
    id: SessionId,
    mut orders: watch::Receiver<Arc<Order>>,
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

/// Ends when nobody listens any more.
async fn serve(id: &SessionId, order: &Order, answers: &mpsc::Sender<Answer>) {
    let say = async |said| {
        let answer = Answer {
            id: id.clone(),
            generation: order.generation,
            said,
        };
        answers.send(answer).await.is_ok()
    };
    let mut failures = 0;
    loop {
        let started = Instant::now();
        match order.handler.validate(&order.spec.details).await {
            Ok(problems) if problems.is_empty() => break,
            Ok(problems) => {
                // The details are this order's: there is nothing to do until the next one.
                if say(Said::Refused(problems)).await {
                    answers.closed().await;
                }
                return;
            }
            Err(fault) => {
                let took = started.elapsed();
                failures += 1;
                if !say(Said::NotValidated { fault, took }).await {
                    return;
                }
                tokio::time::sleep(rest(failures, took)).await;
            }
        }
    }
    let mut session = order.handler.open(order.spec.clone());
    loop {
        let report = session.next().await;
        if !say(Said::Report(Box::new(report))).await {
            return;
        }
    }
}

/// What failed costs at most a hundredth of a core: its wall clock bounds what it computed.
fn rest(failures: u32, took: Duration) -> Duration {
    backoff::wait(failures).max((took * 100).min(timeouts::BACKOFF_LAST))
}
