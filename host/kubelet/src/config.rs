//! Where the kubelet is, and all durations, each with its reason.

use std::path::PathBuf;
use std::time::Duration;

/// Where and how devices are offered.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// The kubelet's folder of device plugins, `/var/lib/kubelet/device-plugins`.
    pub folder: PathBuf,
    /// The beginning of the names of the plugin's sockets, before a `-`: letters, digits, `-` and `_`. No two plugins of a
    /// node may share it.
    pub prefix: String,
    /// The durations.
    pub times: Times,
}

impl PluginConfig {
    /// With the default durations.
    pub fn new(folder: impl Into<PathBuf>, prefix: impl Into<String>) -> Self {
        Self {
            folder: folder.into(),
            prefix: prefix.into(),
            times: Times::default(),
        }
    }
}

/// All durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// How often the folder is read although inotify reported nothing. 30 s.
    pub backstop: Duration,
    /// How long a list, an Allocate or its answer may be under way. An id stays listed meanwhile. 30 s.
    pub linger: Duration,
    /// The longest time until an Allocate is answered, whatever the allocator does: the kubelet has no limit of its own
    /// and admits one pod at a time. 10 s.
    pub allocate: Duration,
    /// How long the kubelet has to answer Register. It connects to the plugin meanwhile, for up to 10 s. 15 s.
    pub register: Duration,
    /// How long the kubelet has to ask for the list after it took a registration. 10 s.
    pub list: Duration,
    /// The time between the end of a list's stream and the next Register with the same kubelet. Up to 1.36 the end of an
    /// old stream disconnects the newest client, so the kubelet must have seen that end. Also the shortest wait after a
    /// Register that the kubelet may have taken. 1 s.
    pub quiet: Duration,
    /// The first wait after a failure; it doubles. Short, because a kubelet that starts makes its socket just before it
    /// listens on it. 10 ms.
    pub backoff: Duration,
    /// The longest wait after the kubelet refused. 5 min.
    pub backoff_refused: Duration,
    /// The longest wait after any other failure. 30 s.
    pub backoff_other: Duration,
    /// How long the end of a session waits for open connections to send what is under way and close. 1 s.
    pub drain: Duration,
    /// The shortest time between two reports. 100 ms.
    pub report: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Self {
            backstop: Duration::from_secs(30),
            linger: Duration::from_secs(30),
            allocate: Duration::from_secs(10),
            register: Duration::from_secs(15),
            list: Duration::from_secs(10),
            quiet: Duration::from_secs(1),
            backoff: Duration::from_millis(10),
            backoff_refused: Duration::from_mins(5),
            backoff_other: Duration::from_secs(30),
            drain: Duration::from_secs(1),
            report: Duration::from_millis(100),
        }
    }
}
