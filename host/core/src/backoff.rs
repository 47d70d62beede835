//! Backoff: the delay after consecutive failures.

use std::time::Duration;

use rand::RngExt as _;

use crate::timeouts::{BACKOFF_FIRST, BACKOFF_LAST};

/// Returns the delay after the `failures`-th consecutive failure. It doubles from one second to five minutes; jitter
/// takes off up to a fifth, so that tasks that failed together do not retry together.
pub fn wait(failures: u32) -> Duration {
    without_jitter(failures).mul_f64(rand::rng().random_range(0.8..=1.0))
}

/// Returns the delay of [`wait`] without jitter, for a task that retries alone.
pub fn without_jitter(failures: u32) -> Duration {
    doubled(BACKOFF_FIRST, failures, BACKOFF_LAST)
}

/// Returns the delay after the `failures`-th consecutive failure: `first`, doubled for each further failure, at most
/// `longest`.
pub fn doubled(first: Duration, failures: u32, longest: Duration) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1));
    let wait = factor.and_then(|factor| first.checked_mul(factor));
    wait.map_or(longest, |wait| wait.min(longest))
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
                (seconds * 0.8..=seconds).contains(&wait),
                "{failures}: {wait}"
            );
        }
    }
}
