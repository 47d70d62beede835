//! Limits on what a handler may use and return.

use std::time::Duration;

/// Limits of one call, or of one set of devices from a handler that is not called. The defaults suit every handler; a
/// grants file may raise some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Linear memory in bytes, over all memories.
    pub memory: u64,
    /// CPU time of the guest.
    pub cpu: Duration,
    /// Wall clock time, including waits.
    pub wall: Duration,
    /// Number of devices in one answer.
    pub devices: u32,
    /// Text of the devices in one answer, in bytes; as much again for the other texts of a component's answer.
    pub answer: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            cpu: Duration::from_secs(2),
            wall: Duration::from_secs(30),
            devices: 4096,
            answer: 8 << 20,
        }
    }
}
