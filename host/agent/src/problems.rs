//! Counts current problems for the metrics, and logs them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::problem::Problem;

use crate::document::AgentState;

/// Minimum time between two updates of the log: handlers can cause problems that come and go.
const SPACING: Duration = Duration::from_secs(10);

impl AgentState {
    /// Returns the number of problems of each part of the agent, including parts without any.
    pub(crate) fn count_problems(&self) -> BTreeMap<&'static str, usize> {
        // Clones the value at once: borrowing it a second time would deadlock if a writer waits in between.
        let handlers = Arc::clone(&self.handlers.borrow());
        let refused = handlers.sources.values();
        let refused = refused.filter(|loaded| loaded.error.is_some()).count();
        let report = Arc::clone(&self.report.borrow());
        let configured = report.configurations.values();
        let configured: usize = configured
            .map(|one| one.problems.len() + one.invalid_details.len())
            .sum();
        let kubelet = self.kubelet.as_ref().map_or(0, |kubelet| {
            let slots = kubelet.slots.borrow();
            kubelet.plugins.borrow().problems.len() + slots.problems.len() + slots.refusals.len()
        });
        let claims = self.claims.as_ref();
        let claims = claims.map_or(0, |claims| claims.problems().len());
        BTreeMap::from([
            ("machine", self.machine_problems().len()),
            ("handlers", handlers.problems.len() + refused),
            (
                "configurations",
                report.set.problems.len() + report.set.left_out.len() + configured,
            ),
            ("instances", self.reconcile.borrow().problems.len()),
            ("cdi", self.offers.borrow().problems.len()),
            ("kubelet", kubelet),
            ("report", usize::from(self.unreported.borrow().is_some())),
            ("claims", claims),
        ])
    }
}

/// Logs each problem when it appears and when it is solved. The slot task and the loader log their own. Runs until it is dropped.
pub(crate) async fn log(mut board: AgentState) {
    let mut logged = BTreeSet::new();
    loop {
        let mut problems = board.problems();
        problems.extend(board.warnings());
        problems.extend(board.report.borrow().failures());
        // A message may change with every answer of a handler, its reason does not.
        let key = |problem: &Problem| (problem.reason(), problem.subject().to_string());
        let now: BTreeSet<_> = problems.iter().map(key).collect();
        for problem in problems
            .iter()
            .filter(|problem| !logged.contains(&key(problem)))
        {
            tracing::warn!(reason = problem.reason(), subject = %problem.subject(), "{problem}");
        }
        for (reason, subject) in logged.difference(&now) {
            tracing::info!(reason, subject, "the problem is solved");
        }
        logged = now;
        board.changed().await;
        tokio::time::sleep(SPACING).await;
    }
}
