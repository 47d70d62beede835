//! All times in one place, with the reason for each.

use std::time::Duration;

/// How long a handler may be Offline before it is removed from the registry (the Akri agent's document).
pub const HANDLER_EVICTION: Duration = Duration::from_mins(5);
/// The wait between two attempts to load a removed handler whose file is still there.
pub const HANDLER_RETRY: Duration = Duration::from_mins(5);
/// How long a missing shared device keeps its Instance: a camera that reboots comes back within it.
pub const SHARED_GRACE: Duration = Duration::from_mins(5);
/// How long a missing local device keeps its Instance: what is unplugged is gone.
pub const LOCAL_GRACE: Duration = Duration::ZERO;
/// The first wait after a failed call.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// The longest wait after failed calls.
pub const BACKOFF_LAST: Duration = Duration::from_mins(5);
/// The wait after that many failed calls in a row, before chance: it doubles from the first to the longest.
pub fn backoff(failures: u32) -> Duration {
    let factor = 2_u32.checked_pow(failures.saturating_sub(1));
    let wait = factor.and_then(|factor| BACKOFF_FIRST.checked_mul(factor));
    wait.map_or(BACKOFF_LAST, |wait| wait.min(BACKOFF_LAST))
}

/// Wakes closer together than this become one call.
pub const WAKE_SPACING: Duration = Duration::from_millis(100);
/// The shortest `after` a handler may ask for.
pub const WAKE_AFTER_MIN: Duration = Duration::from_secs(1);
/// The longest `after` a handler may ask for.
pub const WAKE_AFTER_MAX: Duration = Duration::from_hours(24);
/// How long a closed file must be unchanged before it is read.
pub const FILE_SETTLE: Duration = Duration::from_millis(200);
/// How long a file that is still open must be unchanged before it is read.
pub const FILE_SILENT: Duration = Duration::from_mins(1);
/// How long a file must be absent before it counts as removed: editors and `cp` remove and write again.
pub const FILE_GONE: Duration = Duration::from_secs(2);
/// The wait between two reads of a folder without an event: inotify can lose events silently.
pub const FOLDER_BACKSTOP: Duration = Duration::from_secs(10);
/// How long the compiler child may take for one component.
pub const COMPILE: Duration = Duration::from_mins(1);
/// How long running work has to finish after the first signal.
pub const DRAIN: Duration = Duration::from_secs(5);
