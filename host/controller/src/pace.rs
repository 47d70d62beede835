//! Decides when a task looks at the cluster: soon after a change, and no more often than what a look costs allows.

use std::time::Duration;

use tokio::time::{Instant, sleep_until};

/// A task rests so many times as long as a look took, but not longer than [`LONGEST`].
const REST: u32 = 9;
/// The longest rest after a look.
const LONGEST: Duration = Duration::from_secs(1);

/// When a task looks next.
#[derive(Debug)]
pub struct Pace {
    /// How soon after a change it looks: many come together.
    soon: Duration,
    next: Option<Instant>,
    not_before: Instant,
}

impl Pace {
    /// Returns one that looks at once.
    pub fn new(soon: Duration) -> Self {
        let now = Instant::now();
        Self {
            soon,
            next: Some(now),
            not_before: now,
        }
    }

    /// Notes that something has changed.
    pub fn changed(&mut self) {
        self.by(Instant::now() + self.soon);
    }

    /// Notes that something is to be done at that moment.
    pub fn by(&mut self, moment: Instant) {
        self.next = Some(self.next.map_or(moment, |next| next.min(moment)));
    }

    /// Waits until it is time to look, without end if there is no reason.
    pub async fn due(&self) {
        match self.next {
            Some(next) => sleep_until(next.max(self.not_before)).await,
            None => std::future::pending().await,
        }
    }

    /// Notes that a look began then and is over; the next one is at `next`, if nothing changes before.
    pub fn looked(&mut self, begun: Instant, next: Option<Instant>) {
        self.next = next;
        let rest = begun.elapsed().saturating_mul(REST);
        self.not_before = Instant::now() + rest.min(LONGEST);
    }
}

/// The first of several moments.
#[derive(Debug, Default)]
pub struct Earliest(pub Option<Instant>);

impl Earliest {
    /// Notes one of them.
    pub fn by(&mut self, moment: Instant) {
        self.0 = Some(self.0.map_or(moment, |earliest| earliest.min(moment)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_task_looks_soon_after_a_change_and_rests_longer_after_a_long_look() {
        let mut pace = Pace::new(Duration::from_millis(100));
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
