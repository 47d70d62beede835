//! How much a handler may use and say.

use std::time::Duration;

/// The bounds of one call, and of one set of devices of a handler that is not called. The defaults are meant for every handler; a grants file may raise some.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Bytes of linear memory, of all memories together.
    pub memory: u64,
    /// Computing in the guest.
    pub cpu: Duration,
    /// Wall clock, waiting included.
    pub wall: Duration,
    /// Devices in one answer.
    pub devices: u32,
    /// Bytes of text in one answer.
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
