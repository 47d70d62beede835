//! The allocations that are not decided yet.

use tokio::time::Instant;

use super::queue::Request;

/// Allocations, by what they wait for.
#[derive(Default)]
pub(super) struct Pending {
    /// Those of units of which something is being written or asked.
    pub busy: Vec<Request>,
    /// Those through a Configuration for which no slot is free at the moment.
    pub patient: Vec<Request>,
}

impl Pending {
    /// Returns when the first of those that wait for a free slot has waited for long enough.
    pub fn until(&self) -> Option<Instant> {
        let waiting = self.patient.iter();
        waiting
            .map(|request| request.again_until().unwrap_or(request.asked))
            .min()
    }

    /// Drops all: nothing is decided any more.
    pub fn clear(&mut self) {
        self.busy.clear();
        self.patient.clear();
    }
}
