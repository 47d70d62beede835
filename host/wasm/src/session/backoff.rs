//! Pause after a failed call.

use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::timeouts::BACKOFF_FIRST;

/// Minimum ratio of the pause after a failed call to its CPU time: at most one hundredth of a core.
const PER_CPU: u32 = 100;

/// Returns the pause after `failures` failures in a row, the last of which used `cpu`: that of [`backoff::wait`], and at least a second.
pub(super) fn delay(failures: u32, cpu: Duration) -> Duration {
    let wait = backoff::wait(failures).max(BACKOFF_FIRST);
    wait.max(cpu.saturating_mul(PER_CPU))
}

#[cfg(test)]
mod tests {
    use super::*;

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
                let delay = delay(failures, Duration::ZERO).as_secs_f64();
                assert!((least..=most).contains(&delay), "{failures}: {delay}");
            }
        }
    }

    #[test]
    fn what_was_computed_is_waited_off_a_hundred_times() {
        assert_eq!(delay(1, Duration::from_secs(2)), Duration::from_secs(200));
    }
}
