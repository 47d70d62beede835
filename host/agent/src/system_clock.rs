//! Clock of this machine, with the current boot.

use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::Clock;
use nix::time::{ClockId, clock_gettime};

/// Returns the clock of this machine.
pub fn system() -> Clock {
    let clock = Clock::new(Timestamp::now());
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id = u128::from_str_radix(&id.trim().replace('-', ""), 16);
    let up = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    match (id, up) {
        (Ok(id), Ok(up)) => clock.booted(id, up),
        _ => clock,
    }
}
