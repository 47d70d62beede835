//! Collects the published state of claims, and its problems.

use std::sync::Arc;

use leafhost_claims::ClaimReport;
use leafhost_core::claim::ports::SliceReport;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::wait::changed;
use tokio::sync::watch;

use crate::claims::offer::OfferReport;

/// Published state of claims.
#[derive(Debug, Clone)]
pub struct ClaimBoard {
    /// Claims of this node.
    pub claims: watch::Receiver<Arc<ClaimReport>>,
    /// Offer to the scheduler, with its problems.
    pub offer: watch::Receiver<Arc<OfferReport>>,
    /// State of the slices.
    pub slices: watch::Receiver<SliceReport>,
}

impl ClaimBoard {
    /// Returns the problems of the offer to the scheduler and of claims.
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

    /// Waits until anything is published.
    pub(crate) async fn changed(&mut self) {
        tokio::select! {
            () = changed(&mut self.claims) => {}
            () = changed(&mut self.offer) => {}
            () = changed(&mut self.slices) => {}
        }
    }
}
