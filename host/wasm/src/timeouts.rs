//! The times of this crate in one place, with the reason for each. A rate's time is next to its count.

use std::time::Duration;

/// How long an idle guest thread stays. tokio gives work to idle threads in turn, so with a longer time no thread would ever end
/// where many guests are called now and then.
pub(crate) const GUEST_THREAD_KEEP_ALIVE: Duration = Duration::from_millis(100);
/// The time between two epoch ticks: how long a guest may compute before its limits are checked.
pub(crate) const EPOCH_TICK: Duration = Duration::from_millis(10);
/// CPU time of a call that is made while a handler is loaded.
pub(crate) const LOADING_CPU: Duration = Duration::from_secs(1);
/// Wall clock of such a call.
pub(crate) const LOADING_WALL: Duration = Duration::from_secs(5);
/// How long one request to sysfs may take; twice what finding devices bounds itself to.
pub(crate) const SYSFS_ANSWER: Duration = Duration::from_secs(10);
/// How long each part of an HTTP request may take if the guest does not say.
pub(crate) const HTTP_PART: Duration = Duration::from_secs(10);
/// How often a handler is called that asked for device events where there are none.
pub(crate) const INSTEAD_OF_EVENTS: Duration = Duration::from_mins(1);
/// How long device events may be compared with the wakes from one call to the next: the patterns are the handler's, and a thread of the
/// agent compares them. What comes then wakes: a call too many costs some milliseconds, one too few a device.
pub(crate) const COMPARING: Duration = Duration::from_millis(50);
/// How long after its begin a change of the network is looked at: a link gets its addresses one after the other.
pub(crate) const NETWORK_SETTLE: Duration = Duration::from_millis(200);
