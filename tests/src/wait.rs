//! Functions that poll a condition until it holds or time is up.

use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};

/// Time limit for any condition, generous for a busy machine.
pub const TIMEOUT: Duration = Duration::from_mins(1);

/// Polls `look` until it succeeds; fails with its last error.
pub fn eventually<T>(what: &str, look: impl FnMut() -> Result<T>) -> Result<T> {
    within(TIMEOUT, what, look)
}

/// Polls `look` until it succeeds, for at most `limit`; fails with its last error.
#[expect(
    clippy::disallowed_methods,
    reason = "a black-box test has nothing to be woken by; this is the one place that looks again"
)]
pub fn within<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
    let start = Instant::now();
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(error) if start.elapsed() > limit => {
                bail!("{what}: not within {limit:?}: {error:#}")
            }
            Err(_) => std::thread::sleep(Duration::from_millis(25)),
        }
    }
}

/// Waits for this time. For measures only: a test waits for a condition.
pub fn pass(time: Duration) -> Result<()> {
    let begun = Instant::now();
    within(time * 2, "that time has passed", || {
        ensure!(begun.elapsed() > time);
        Ok(())
    })
}
