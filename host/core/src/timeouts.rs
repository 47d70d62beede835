//! Timeouts and intervals, each with its reason.

use std::time::Duration;

/// Time after which an Offline handler is removed from the registry, as documented for the Akri agent.
pub const HANDLER_EVICTION: Duration = Duration::from_mins(5);
/// Delay between attempts to load a removed handler whose file still exists.
pub const HANDLER_RETRY: Duration = Duration::from_mins(5);
/// Grace period of a missing shared device: long enough for a camera to reboot.
pub const SHARED_GRACE: Duration = Duration::from_mins(5);
/// Grace period of a missing local device: what is unplugged is gone.
pub const LOCAL_GRACE: Duration = Duration::ZERO;
/// Delay after the first failed call.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// Maximum delay after failed calls.
pub const BACKOFF_LAST: Duration = Duration::from_mins(5);
/// Interval within which several wakes become one call.
pub const WAKE_SPACING: Duration = Duration::from_millis(100);
/// Minimum `after` that a handler may ask for.
pub const WAKE_AFTER_MIN: Duration = Duration::from_secs(1);
/// Maximum `after` that a handler may ask for.
pub const WAKE_AFTER_MAX: Duration = Duration::from_hours(24);
/// Time for which a closed file must be unchanged before it is read.
pub const FILE_SETTLE: Duration = Duration::from_millis(200);
/// Time for which a file that is still open must be unchanged before it is read.
pub const FILE_SILENT: Duration = Duration::from_mins(1);
/// Time for which a file must be absent to count as removed: editors and `cp` remove and write again.
pub const FILE_GONE: Duration = Duration::from_secs(2);
/// Interval at which a folder is read without an event: inotify can lose events silently.
pub const FOLDER_BACKSTOP: Duration = Duration::from_secs(10);
/// Time limit for running work to finish after the first signal.
pub const DRAIN: Duration = Duration::from_secs(5);
