//! Backoff: the wait after failures in a row, and which of them are logged.

use std::time::Duration;

use crate::timeouts;
use rand::RngExt as _;

/// Returns the wait after the `failures`-th failure in a row. It doubles from one second to five minutes; up to a
/// quarter is random, so that tasks that failed together do not retry together.
pub fn wait(failures: u32) -> Duration {
    timeouts::backoff(failures).mul_f64(rand::rng().random_range(0.75..=1.0))
}

/// Returns true if the `failures`-th failure in a row is logged: those whose number is a power of two.
pub fn is_logged(failures: u64) -> bool {
    failures.is_power_of_two()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_from_a_second_to_five_minutes() {
        for (failures, seconds) in [
            (1, 1.0),
            (2, 2.0),
            (5, 16.0),
            (9, 256.0),
            (10, 300.0),
            (99, 300.0),
        ] {
            let wait = wait(failures).as_secs_f64();
            assert!(
                (seconds * 0.75..=seconds).contains(&wait),
                "{failures}: {wait}"
            );
        }
    }

    #[test]
    fn a_thousand_failures_make_ten_lines() {
        assert_eq!((1..=1000).filter(|&n| is_logged(n)).count(), 10);
    }
}
