//! Benchmarks of the agent, printed as a table of values, targets and references.
//!
//! Run by `make bench`, as root: the benchmarks plug in devices and trigger their change events. Arguments select measures
//! by name: `cargo bench --profile dist --bench agent -- memory idle`.
#![allow(missing_docs, reason = "a benchmark")]

mod busy_agent;
mod device_count;
mod disk;
mod hotplug;
mod idle;
mod installed;
mod memory;
mod new_handler;
mod process;
mod statistics;
mod status;
mod table;
mod unchanged;
mod watch;

use anyhow::{Result, ensure};
use leafhost_tests::requirement;

/// Name of a measure and its function.
type Measure = (&'static str, fn() -> Result<Vec<table::Line>>);

const MEASURES: [Measure; 7] = [
    ("memory", memory::measure),
    ("hotplug", hotplug::measure),
    ("new-handler", new_handler::measure),
    ("device-count", device_count::measure),
    ("unchanged", unchanged::measure),
    ("idle", idle::measure),
    ("status", status::measure),
];

fn main() -> Result<()> {
    // Cargo adds flags of its own.
    let arguments = std::env::args().skip(1);
    let chosen: Vec<String> = arguments.filter(|name| !name.starts_with('-')).collect();
    if requirement::lacks(requirement::root("sudo -E make bench"))? {
        return Ok(());
    }
    for name in &chosen {
        let known = MEASURES.iter().any(|(known, _)| known == name);
        ensure!(known, "there is no measure {name:?}");
    }
    let mut lines = Vec::new();
    for (name, measure) in MEASURES {
        if chosen.is_empty() || chosen.iter().any(|chosen| chosen == name) {
            lines.extend(measure()?);
        }
    }
    table::print(&lines);
    Ok(())
}
