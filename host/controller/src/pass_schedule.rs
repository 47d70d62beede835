//! Decides when a task runs its next pass: soon after a change, but not more often than the duration of a pass allows.

use std::time::Duration;

use leafhost_core::wait::until;
use tokio::time::Instant;

/// Factor between the duration of a pass and the pause after it, which is at most [`LONGEST`].
const REST: u32 = 9;
/// Maximum pause after a pass.
const LONGEST: Duration = Duration::from_secs(1);

/// Schedule of a task's passes.
#[derive(Debug)]
pub struct PassSchedule {
    /// Delay between a change and the pass that handles it; many changes come together.
    soon: Duration,
    next: Option<Instant>,
    not_before: Instant,
}

impl PassSchedule {
    /// Creates a schedule whose first pass is due at once.
    pub fn new(soon: Duration) -> Self {
        let now = Instant::now();
        Self {
            soon,
            next: Some(now),
            not_before: now,
        }
    }

    /// Records a change.
    pub fn changed(&mut self) {
        self.by(Instant::now() + self.soon);
    }

    /// Requests a pass at `moment` at the latest.
    pub fn by(&mut self, moment: Instant) {
        self.next = Some(self.next.map_or(moment, |next| next.min(moment)));
    }

    /// Waits until a pass is due, forever if there is no reason for one.
    pub async fn due(&self) {
        until(self.next.map(|next| next.max(self.not_before))).await;
    }

    /// Records the end of a pass that began at `begun`; the next pass is at `next` unless a change comes earlier.
    pub fn looked(&mut self, begun: Instant, next: Option<Instant>) {
        self.next = next;
        let rest = begun.elapsed().saturating_mul(REST);
        self.not_before = Instant::now() + rest.min(LONGEST);
    }
}

/// Earliest of several moments.
#[derive(Debug, Default)]
pub struct Earliest(pub Option<Instant>);

impl Earliest {
    /// Adds a moment.
    pub fn by(&mut self, moment: Instant) {
        self.0 = Some(self.0.map_or(moment, |earliest| earliest.min(moment)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_looks_soon_after_a_change_and_rests_longer_after_a_long_look() {
        let mut pace = PassSchedule::new(Duration::from_millis(100));
        for (look, waited) in [
            (0, 0),
            (0, 100),
            (50, 100),
            (0, 450),
            (5_000, 100),
            (0, 1_000),
        ] {
            let changed = Instant::now();
            pace.due().await;
            assert_eq!(changed.elapsed().as_millis(), waited);
            let begun = Instant::now();
            tokio::time::advance(Duration::from_millis(look)).await;
            pace.looked(begun, None);
            pace.changed();
        }
    }
}
