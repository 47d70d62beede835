//! Benchmarks of discovery on a network, printed as a table of values, targets and references.
//!
//! Run by `make bench` as root: the agent and its peers are in network namespaces.
#![allow(missing_docs, reason = "a benchmark")]

mod arrivals;
mod calls;
mod cameras;
mod servers;
mod table;

use std::time::Duration;

use anyhow::Result;
use leafhost_tests::{lan, requirement};

fn main() -> Result<()> {
    let missing = requirement::root("sudo -E make bench").or_else(lan::missing);
    if requirement::lacks(missing)? {
        return Ok(());
    }
    let mut lines = cameras::measure()?;
    lines.extend(arrivals::measure()?);
    lines.extend(servers::measure()?);
    table::print(&lines);
    Ok(())
}

/// Formats seconds with two digits.
fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// Returns median and maximum; sorts the times.
fn median_and_worst(times: &mut [Duration]) -> (Duration, Duration) {
    times.sort();
    let at = |index: usize| times.get(index).copied().unwrap_or_default();
    (at(times.len() / 2), at(times.len().saturating_sub(1)))
}
