//! How soon a call may follow another. Anybody on the network can send what wakes a handler, so calls that others cause for long
//! are made less often.

use std::collections::VecDeque;
use std::time::Duration;

use leafhost_core::timeouts::WAKE_SPACING;
use tokio::time::Instant;

/// The time that is looked at.
const WINDOW: Duration = Duration::from_secs(10);
/// More calls than this in it are a flood…
const FLOOD: usize = 20;
/// …until there are fewer than this.
const CALM: usize = 5;
/// The time between calls in a flood.
const FLOOD_SPACING: Duration = Duration::from_secs(1);

/// The calls of the last ten seconds that others caused.
#[derive(Debug, Default)]
pub(super) struct Pace {
    calls: VecDeque<Instant>,
    flooded: bool,
}

impl Pace {
    /// Counts a call that others caused.
    pub(super) fn count(&mut self, now: Instant) {
        self.forget(now);
        self.calls.push_back(now);
        self.flooded |= self.calls.len() > FLOOD;
    }

    /// How long after a call that ends now the next may be made.
    pub(super) fn spacing(&mut self, now: Instant) -> Duration {
        self.forget(now);
        self.flooded &= self.calls.len() >= CALM;
        if self.flooded {
            FLOOD_SPACING
        } else {
            WAKE_SPACING
        }
    }

    fn forget(&mut self, now: Instant) {
        while self
            .calls
            .pop_front_if(|at| now.duration_since(*at) >= WINDOW)
            .is_some()
        {}
    }
}
