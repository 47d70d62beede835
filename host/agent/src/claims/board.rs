//! Collects what the agent's claims publish, and what is wrong with it.

use std::sync::Arc;

use leafhost_claims::ClaimReport;
use leafhost_core::claim::ports::SliceReport;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use tokio::sync::watch;

use crate::claims::offer::OfferReport;

/// Shows what the agent's claims publish.
#[derive(Debug, Clone)]
pub struct ClaimBoard {
    /// Shows the claims.
    pub claims: watch::Receiver<Arc<ClaimReport>>,
    /// Says what keeps devices from being offered.
    pub offer: watch::Receiver<Arc<OfferReport>>,
    /// Says how the slices are.
    pub slices: watch::Receiver<SliceReport>,
}

impl ClaimBoard {
    /// Returns what is wrong with what the scheduler is offered, and with claims.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        let offer = Arc::clone(&self.offer.borrow());
        if let Some(why) = &offer.problem {
            let unavailable = |configuration: &ConfigurationKey| Problem::DraUnavailable {
                configuration: configuration.clone(),
                why: why.clone(),
            };
            problems.extend(offer.offered.keys().map(unavailable));
        }
        if !offer.left_out.is_empty() {
            let names = offer.left_out.iter().cloned().collect();
            problems.push(Problem::AttributesLeftOut { names });
        }
        let unwritten = self.slices.borrow().problem.clone();
        problems.extend(unwritten.map(|error| Problem::SlicesNotWritten { error }));
        let claims = Arc::clone(&self.claims.borrow());
        if !claims.unreadable.is_empty() {
            let claims = claims.unreadable.keys().cloned().collect();
            problems.push(Problem::ClaimRecordUnreadable { claims });
        }
        problems
    }

    /// Waits until something else is published.
    pub(crate) async fn changed(&mut self) -> Result<(), watch::error::RecvError> {
        tokio::select! {
            changed = self.claims.changed() => changed,
            changed = self.offer.changed() => changed,
            changed = self.slices.changed() => changed,
        }
    }
}
