//! All times in one place, with the reason for each.

use std::time::Duration;

/// A handler that stays Offline so long is removed from the registry (the Akri agent's document).
pub const HANDLER_EVICTION: Duration = Duration::from_mins(5);
/// A removed handler whose bytes are still there is tried again so often.
pub const HANDLER_RETRY: Duration = Duration::from_mins(5);
/// How long a missing shared device keeps its Instance: a camera that reboots comes back within it.
pub const SHARED_GRACE: Duration = Duration::from_mins(5);
/// How long a missing local device keeps its Instance: what is unplugged is gone.
pub const LOCAL_GRACE: Duration = Duration::ZERO;
/// The first wait after a failed call.
pub const BACKOFF_FIRST: Duration = Duration::from_secs(1);
/// The longest wait after failed calls.
pub const BACKOFF_LAST: Duration = Duration::from_mins(5);
/// Wakes closer together than this become one call.
pub const WAKE_SPACING: Duration = Duration::from_millis(100);
/// The shortest `after` a handler may ask for.
pub const WAKE_AFTER_MIN: Duration = Duration::from_secs(1);
/// The longest `after` a handler may ask for.
pub const WAKE_AFTER_MAX: Duration = Duration::from_hours(24);
/// A file counts once it is closed and unchanged for so long.
pub const FILE_SETTLE: Duration = Duration::from_millis(200);
/// A file that was written to and not closed counts after so long without a write.
pub const FILE_SILENT: Duration = Duration::from_mins(1);
/// A file counts as gone after so long: editors and `cp` remove and write again.
pub const FILE_GONE: Duration = Duration::from_secs(2);
/// Folders are read again so often even if nothing was heard: inotify loses events silently.
pub const FOLDER_BACKSTOP: Duration = Duration::from_secs(10);
/// The compiler child gets so long for one component.
pub const COMPILE: Duration = Duration::from_mins(1);
/// What runs has so long to finish after the first signal.
pub const DRAIN: Duration = Duration::from_secs(5);
