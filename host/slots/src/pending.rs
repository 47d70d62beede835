//! Allocations that are not decided yet.

use tokio::time::Instant;

use super::queue::Request;

/// Waiting allocations by what they wait for.
#[derive(Default)]
pub(super) struct Pending {
    /// Requests with a device id that is being written or asked about.
    pub busy: Vec<Request>,
    /// Requests through a Configuration for which no slot is free at the moment.
    pub waiting_for_slot: Vec<Request>,
}

impl Pending {
    /// Returns the first end of the time limits of `waiting_for_slot`.
    pub fn until(&self) -> Option<Instant> {
        let waiting = self.waiting_for_slot.iter();
        waiting
            .map(|request| request.again_until().unwrap_or(request.asked))
            .min()
    }

    /// Drops all requests: the task decides nothing more.
    pub fn clear(&mut self) {
        self.busy.clear();
        self.waiting_for_slot.clear();
    }
}
