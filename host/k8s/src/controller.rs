//! The controller's side of a cluster: nodes, Instances, statuses, names, and the objects of brokers.
//!
//! Knows agents only by the objects they write, and nothing of the webhook and the migration from Akri.

pub mod brokers;
pub mod classes;
pub mod cluster;
mod left_over;
mod pools;

/// Logs a new reason why objects are not up to date.
fn log_problem(logged: &mut Option<String>, problem: Option<String>, what: &str) {
    if problem != *logged {
        if let Some(problem) = &problem {
            tracing::warn!(problem, "cannot bring {what} up to date");
        }
        *logged = problem;
    }
}
