//! Location of the kubelet, and all durations, each with its reason.

use std::path::PathBuf;
use std::time::Duration;

/// Settings of the device plugins.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// Folder of device plugins of the kubelet, `/var/lib/kubelet/device-plugins`.
    pub folder: PathBuf,
    /// Prefix of the plugin's socket names, before a `-`: letters, digits, `-` and `_`. No two plugins of a node may share it.
    pub prefix: String,
    /// Time limits, pauses and intervals.
    pub times: Times,
}

impl PluginConfig {
    /// Creates a configuration with the default durations.
    pub fn new(folder: impl Into<PathBuf>, prefix: impl Into<String>) -> Self {
        Self {
            folder: folder.into(),
            prefix: prefix.into(),
            times: Times::default(),
        }
    }
}

/// Durations of the device plugins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// Interval at which the folder is read even if inotify reported nothing. Default: 30 s.
    pub backstop: Duration,
    /// Longest time that a list, an Allocate or its answer may be in flight. An id stays listed during this time. Default: 30 s.
    pub linger: Duration,
    /// Time limit for the answer to an Allocate, whatever the allocator does: the kubelet has no limit of its own and admits one pod at a
    /// time. Default: 16 s.
    pub allocate: Duration,
    /// Time limit for the kubelet's answer to Register. It connects to the plugin during this time, for up to 10 s. Default: 15 s.
    pub register: Duration,
    /// Time limit for the kubelet to request the list after it accepted a registration. Default: 10 s.
    pub list: Duration,
    /// Pause between the end of a list's stream and the next Register with the same kubelet. Up to 1.36 the end of an old stream
    /// disconnects the newest client, so the kubelet must have seen that end. Also the least pause after a Register that the kubelet may
    /// have accepted. Default: 1 s.
    pub quiet: Duration,
    /// First pause after a failure; it doubles. Short, because a starting kubelet creates its socket just before it listens on it. Default: 10 ms.
    pub backoff: Duration,
    /// Longest pause after a failure other than a refusal. Default: 30 s.
    pub backoff_other: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            backstop: Duration::from_secs(30),
            linger: Duration::from_secs(30),
            allocate: Duration::from_secs(16),
            register: Duration::from_secs(15),
            list: Duration::from_secs(10),
            quiet: Duration::from_secs(1),
            backoff: Duration::from_millis(10),
            backoff_other: Duration::from_secs(30),
        }
    }
}
