//! Where the kubelet is, and every time there is, with its reason.

use std::path::PathBuf;
use std::time::Duration;

/// Where and how devices are offered.
#[derive(Debug, Clone)]
pub struct PluginConfig {
    /// The kubelet's folder of device plugins, `/var/lib/kubelet/device-plugins`.
    pub folder: PathBuf,
    /// What the names of our sockets begin with, before a `-`: letters, digits, `-` and `_`. No two plugins may share it.
    pub prefix: String,
    /// The times.
    pub times: Times,
}

impl PluginConfig {
    /// With the default times.
    pub fn new(folder: impl Into<PathBuf>, prefix: impl Into<String>) -> Self {
        Self {
            folder: folder.into(),
            prefix: prefix.into(),
            times: Times::default(),
        }
    }
}

/// All times.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Times {
    /// The folder is looked at so often even if nothing was heard. 30 s.
    pub backstop: Duration,
    /// A list, an Allocate or its answer may be on its way for so long; an id stays listed meanwhile. 30 s.
    pub linger: Duration,
    /// An Allocate is answered within this, whatever the allocator does: the kubelet has no limit of its own and
    /// admits one pod at a time. 10 s.
    pub allocate: Duration,
    /// Register is answered within this: the kubelet dials us for up to 10 s meanwhile. 15 s.
    pub register: Duration,
    /// The kubelet asks for the list within this after it took a registration. 10 s.
    pub list: Duration,
    /// Between the end of a list's stream and the next Register with the same kubelet. Up to 1.35 the end of an old
    /// stream disconnects the newest client, so the kubelet must have seen it. The least wait wherever a Register may have
    /// been taken. 1 s.
    pub quiet: Duration,
    /// The first wait after a failure; it doubles. Short, because a kubelet that starts is there in a moment: its socket
    /// is seen before it is listened on. 10 ms.
    pub backoff: Duration,
    /// The longest wait after the kubelet refused. 5 min.
    pub backoff_refused: Duration,
    /// The longest wait after any other failure. 30 s.
    pub backoff_other: Duration,
    /// Open connections have so long to send what is under way before they are closed. 1 s.
    pub drain: Duration,
    /// Reports are at least so far apart. 100 ms.
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
