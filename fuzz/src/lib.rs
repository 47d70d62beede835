//! What the targets share: a clock of their own, and second opinions to hold the host's to.

pub mod answer;
pub mod glob;
pub mod machine;

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Runs `work` and fails if this thread computed longer: other programs on the machine do not count.
///
/// # Panics
/// When it did.
pub fn within<T>(bound: Duration, work: impl FnOnce() -> T) -> T {
    let begin = computed();
    let result = work();
    let took = computed().saturating_sub(begin);
    assert!(took <= bound, "computed for {took:?}, at most {bound:?}");
    result
}

fn computed() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}
