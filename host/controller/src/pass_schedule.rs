//! Decides when a task runs its next pass: soon after a change, but not more often than the duration of a pass allows.

use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::wait::until;
use tokio::time::Instant;

/// Delay between a change and the pass of most tasks; many changes come together.
pub const SOON: Duration = Duration::from_millis(100);
/// Factor between the duration of a pass and the pause after it, which is at most [`LONGEST`].
const REST: u32 = 9;
/// Maximum pause after a pass.
const LONGEST: Duration = Duration::from_secs(1);

/// Schedule of a task's passes.
#[derive(Debug)]
pub struct PassSchedule {
    /// Delay between a change and the pass that handles it.
    soon: Duration,
    next: Option<Instant>,
    not_before: Instant,
    /// Beginning of the pass that runs, if any.
    begun: Option<Instant>,
}

impl PassSchedule {
    /// Creates a schedule whose first pass is due at once.
    pub fn new(soon: Duration) -> Self {
        let now = Instant::now();
        Self {
            soon,
            next: Some(now),
            not_before: now,
            begun: None,
        }
    }

    /// Records a change.
    pub fn changed(&mut self) {
        self.by(Instant::now() + self.soon);
    }

    /// Schedules a pass for a moment, unless one comes earlier.
    pub fn by(&mut self, moment: Instant) {
        self.next = Some(self.next.map_or(moment, |next| next.min(moment)));
    }

    /// Waits until a pass is due; waits forever if none is scheduled. The pass begins when this returns, and ends with the next call.
    pub async fn due(&mut self) {
        if let Some(begun) = self.begun.take() {
            let rest = begun.elapsed().saturating_mul(REST);
            self.not_before = Instant::now() + rest.min(LONGEST);
        }
        until(self.next.map(|next| next.max(self.not_before))).await;
        self.next = None;
        self.begun = Some(Instant::now());
    }
}

/// Returns the time from `now` to a moment of the clock, at least [`SOON`].
pub fn time_until(moment: Timestamp, now: Timestamp) -> Duration {
    let left = Duration::try_from(moment.duration_since(now));
    left.unwrap_or_default().max(SOON)
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
            tokio::time::advance(Duration::from_millis(look)).await;
            pace.changed();
        }
    }
}
