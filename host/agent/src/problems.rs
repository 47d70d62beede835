//! What is wrong at this moment, by the part of the agent that says so: counted in the metrics, and what concerns files of
//! the operator told in the log.
//!
//! The other parts log what they meet by themselves.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::ports::SourceProblem;
use tokio_util::sync::CancellationToken;

use crate::document::Board;

/// The log follows the board at most this often.
const SPACING: Duration = Duration::from_secs(1);

impl Board {
    /// How many problems each part of the agent has; all parts, also those that have none.
    pub(crate) fn count_problems(&self) -> BTreeMap<&'static str, usize> {
        let handlers = self.handlers.borrow();
        let refused = handlers.sources.values();
        let refused = refused.filter(|loaded| loaded.error.is_some()).count();
        let report = self.report.borrow();
        let configured = report.configurations.values();
        let configured: usize = configured
            .map(|one| one.problems.len() + one.invalid_details.len())
            .sum();
        let offers = self.offers.as_ref();
        let cdi = offers.map_or(0, |offers| offers.borrow().problems.len());
        let kubelet = self.kubelet.as_ref().map_or(0, |kubelet| {
            let slots = kubelet.slots.borrow();
            kubelet.plugins.borrow().problems.len() + slots.problems.len() + slots.refusals.len()
        });
        BTreeMap::from([
            ("machine", self.identity.problems.len()),
            ("handlers", handlers.problems.len() + refused),
            ("configurations", report.problems.len() + configured),
            ("instances", self.reconcile.borrow().problems.len()),
            ("cdi", cdi),
            ("kubelet", kubelet),
        ])
    }

    fn file_problems(&self) -> BTreeSet<String> {
        let (handlers, report) = (self.handlers.borrow(), self.report.borrow());
        let both = handlers.problems.iter().chain(&report.problems);
        both.map(SourceProblem::to_string).collect()
    }
}

/// Logs each problem of a file when it comes up, and once none is left says that, too.
pub(crate) async fn tell(mut board: Board, shutdown: CancellationToken) {
    let mut told = BTreeSet::new();
    loop {
        let now = board.file_problems();
        for problem in now.difference(&told) {
            tracing::warn!(problem, "a file or folder cannot be used");
        }
        if now.is_empty() && !told.is_empty() {
            tracing::info!("all files and folders can be used again");
        }
        told = now;
        let open = tokio::select! {
            () = shutdown.cancelled() => return,
            open = board.changed() => open,
        };
        if !open {
            // A publisher ends only with its task, which is somebody else's decision.
            shutdown.cancelled().await;
            return;
        }
        tokio::select! {
            () = shutdown.cancelled() => return,
            () = tokio::time::sleep(SPACING) => {}
        }
    }
}
