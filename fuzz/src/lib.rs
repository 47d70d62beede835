//! Shared by the fuzz targets: a limit on computing time, and reference implementations to compare the host with.

pub mod answer;
pub mod glob;
pub mod machine;

use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// Runs `work` and checks the CPU time that this thread used, so that other programs do not count.
///
/// # Panics
/// Panics if `work` used more than `bound`.
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
