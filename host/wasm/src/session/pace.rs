//! Spacing of calls, also after failures. Any host on the network can send datagrams that wake a handler, so the pace delays a flood
//! of such calls and leaves pauses between them.

use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::timeouts::{BACKOFF_FIRST, WAKE_SPACING};
use tokio::time::Instant;

/// Number of calls in a row above which they count as a flood.
const FLOOD: u32 = 20;
/// Pause after which the calls in a row are counted from zero again.
const CALM: Duration = Duration::from_secs(10);
/// Bounds of the pause after a call in a flood; within them it equals the duration of that call.
const FLOOD_SPACING: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));

/// Minimum ratio of the pause after a failed call to its CPU time: at most one hundredth of a core.
const PER_CPU: u32 = 100;

/// Returns the pause after `failures` failures in a row, the last of which used `cpu`: that of [`backoff::wait`], but at least
/// [`BACKOFF_FIRST`] and [`PER_CPU`] times `cpu`.
pub(super) fn after_failure(failures: u32, cpu: Duration) -> Duration {
    let wait = backoff::wait(failures).max(BACKOFF_FIRST);
    wait.max(cpu.saturating_mul(PER_CPU))
}

/// Number and times of the calls that other hosts on the network caused.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Start of the running call.
    begun: Option<Instant>,
    /// End of the last call.
    ended: Option<Instant>,
    /// Number of calls in a row.
    calls: u32,
}

impl Pace {
    /// Records the start of a call that the network caused.
    pub(super) fn begin(&mut self, now: Instant) {
        if self.ended.is_some_and(|ended| now - ended >= CALM) {
            self.calls = 0;
        }
        self.begun = Some(now);
    }

    /// Records the end of a call, whatever caused it; returns the pause after it.
    pub(super) fn end(&mut self, now: Instant) -> Duration {
        let Some(begun) = self.begun.take() else {
            return WAKE_SPACING;
        };
        self.ended = Some(now);
        self.calls = self.calls.saturating_add(1);
        if self.calls <= FLOOD {
            return WAKE_SPACING;
        }
        let (least, most) = FLOOD_SPACING;
        (now - begun).clamp(least, most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the share of ten minutes that calls of this length take if each is made as soon as possible, and their number.
    fn share(length: Duration) -> (f64, u32) {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        // The first calls make it a flood.
        for _ in 0..=FLOOD {
            pace.begin(now);
            now += length;
            now += pace.end(now);
        }
        let (start, mut spent, mut calls) = (now, Duration::ZERO, 0);
        while now < start + Duration::from_mins(10) {
            pace.begin(now);
            spent += length;
            calls += 1;
            now += length;
            now += pace.end(now);
        }
        let all = now.duration_since(start);
        (spent.as_secs_f64() / all.as_secs_f64(), calls)
    }

    #[test]
    fn calls_that_others_cause_are_one_a_second_and_leave_time_between_them() {
        for (millis, most) in [
            (1, 0.01),
            (100, 0.1),
            (400, 0.29),
            (600, 0.38),
            (1000, 0.51),
            (2000, 0.51),
            (5000, 0.51),
            (12_000, 0.61),
            (30_000, 0.8),
        ] {
            let (share, calls) = share(Duration::from_millis(millis));
            assert!(share <= most, "{millis}: {share}");
            assert!(calls <= 602, "{millis}: {calls}");
        }
    }

    #[test]
    fn calls_now_and_then_are_not_kept_away() {
        let mut pace = Pace::default();
        let mut now = Instant::now();
        for _ in 0..100 {
            pace.begin(now);
            now += Duration::from_secs(4);
            assert_eq!(pace.end(now), WAKE_SPACING);
            // Calls with other causes do not count.
            for _ in 0..60 {
                now += Duration::from_millis(200);
                assert_eq!(pace.end(now), WAKE_SPACING);
            }
        }
    }

    #[test]
    fn waits_double_from_one_second_to_five_minutes() {
        for (failures, least, most) in [
            (1, 1.0, 1.0),
            (2, 1.6, 2.0),
            (3, 3.2, 4.0),
            (10, 240.0, 300.0),
            (u32::MAX, 240.0, 300.0),
        ] {
            for _ in 0..50 {
                let delay = after_failure(failures, Duration::ZERO).as_secs_f64();
                assert!((least..=most).contains(&delay), "{failures}: {delay}");
            }
        }
    }

    #[test]
    fn what_was_computed_is_waited_off_a_hundred_times() {
        assert_eq!(
            after_failure(1, Duration::from_secs(2)),
            Duration::from_secs(200)
        );
    }
}
