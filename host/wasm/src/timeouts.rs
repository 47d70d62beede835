//! The timeouts of this crate in one place, each with its reason. The period of a rate limit is next to its count, where that is used.

use std::time::Duration;

/// Time after which an idle guest thread ends. tokio gives work to idle threads in turn, so with a longer time no thread would ever end
/// where many guests are called now and then.
pub(crate) const GUEST_THREAD_KEEP_ALIVE: Duration = Duration::from_millis(100);
/// Interval of epoch ticks: the time for which a guest may compute before its limits are checked.
pub(crate) const EPOCH_TICK: Duration = Duration::from_millis(10);
/// CPU time limit of a call that is made while a handler is loaded.
pub(crate) const LOADING_CPU: Duration = Duration::from_secs(1);
/// Wall clock limit of a call that is made while a handler is loaded.
pub(crate) const LOADING_WALL: Duration = Duration::from_secs(5);
/// Timeout of one request to sysfs; twice the bound of a search for devices.
pub(crate) const SYSFS_ANSWER: Duration = Duration::from_secs(10);
/// Timeout of each part of an HTTP request if the guest sets none.
pub(crate) const HTTP_PART: Duration = Duration::from_secs(10);
/// Interval of the calls of a handler that asked for device events if the agent cannot receive them.
pub(crate) const INSTEAD_OF_EVENTS: Duration = Duration::from_mins(1);
/// Maximum CPU time for comparing device events with wakes between two reports: the patterns are the handler's, and a thread of the agent
/// compares them. Later events wake without a comparison: a superfluous call costs some milliseconds, a missing one a device.
pub(crate) const COMPARING: Duration = Duration::from_millis(50);
