//! The clock: wall time that runs with tokio's, so that deadlines and shown times never disagree and tests can pause both.
//!
//! A step of the system's clock after the start is not followed.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// Wall time, anchored once.
#[derive(Debug, Clone, Copy)]
pub struct Clock {
    started: Instant,
    wall: Timestamp,
}

impl Clock {
    /// A clock that shows `wall` now.
    pub fn new(wall: Timestamp) -> Self {
        Self {
            started: Instant::now(),
            wall,
        }
    }

    /// The time, in whole milliseconds: it is shown to people.
    pub fn now(&self) -> Timestamp {
        let now = later(self.wall, self.started.elapsed());
        Timestamp::from_millisecond(now.as_millisecond()).unwrap_or(now)
    }

    /// The moment at which the clock will show `time`; now for what is past.
    pub fn instant(&self, time: Timestamp) -> Instant {
        let wait = Duration::try_from(time.duration_since(self.now())).unwrap_or_default();
        Instant::now() + wait
    }
}

/// `time` and `by` more, at most the end of time.
pub fn later(time: Timestamp, by: Duration) -> Timestamp {
    SignedDuration::try_from(by)
        .ok()
        .and_then(|by| time.checked_add(by).ok())
        .unwrap_or(Timestamp::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn wall_time_runs_with_the_paused_clock() {
        let clock = Clock::new(Timestamp::UNIX_EPOCH);
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now().as_second(), 90);
        let ahead = clock.instant(Timestamp::from_second(100).unwrap());
        assert_eq!(ahead - Instant::now(), Duration::from_secs(10));
        assert_eq!(clock.instant(Timestamp::UNIX_EPOCH), Instant::now());
    }

    #[test]
    fn the_end_of_time_is_not_passed() {
        assert_eq!(
            later(Timestamp::MAX, Duration::from_secs(1)),
            Timestamp::MAX
        );
    }
}
