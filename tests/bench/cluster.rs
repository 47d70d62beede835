//! Benchmarks of the agent in a cluster, printed as a table of values, targets and references.
//!
//! Run by `make bench`, as root. Requests are counted in the API server's audit log. Arguments select measures by name:
//! `cargo bench --profile dist --bench cluster -- writes claims`. `many-nodes` and `chosen-many` run only if named,
//! because they take long.
#![allow(missing_docs, reason = "a benchmark")]

mod brokers;
mod chosen;
mod chosen_many;
mod claims;
mod competing;
mod config_map;
mod empty_extender;
mod freed;
mod histogram;
mod in_use;
mod installed;
mod joined;
mod many_devices;
mod many_nodes;
mod process;
mod scheduled;
mod scheduled_shared;
mod simulated;
mod statistics;
mod table;
mod writes;

use anyhow::{Result, ensure};
use leafhost_tests::cluster::{self, Cluster};

/// Name of a measure and its function.
type Measure = (
    &'static str,
    fn(&'static Cluster) -> Result<Vec<table::Line>>,
);

const MEASURES: [Measure; 13] = [
    ("writes", writes::measure),
    ("config-map", config_map::measure),
    ("claims", claims::measure),
    ("competing", competing::measure),
    ("freed", freed::measure),
    ("brokers", brokers::measure),
    ("in-use", in_use::measure),
    ("scheduled", scheduled::measure),
    ("scheduled-shared", scheduled_shared::measure),
    ("chosen", chosen::measure),
    // Last, because the API server is busy with the objects they leave.
    ("many-devices", many_devices::measure),
    ("many-nodes", many_nodes::measure),
    ("chosen-many", chosen_many::measure),
];

/// Measures that run only if named.
const LONG: [&str; 2] = ["many-nodes", "chosen-many"];

fn main() -> Result<()> {
    if simulated::run_if_asked()? {
        return Ok(());
    }
    // Cargo adds flags of its own.
    let arguments = std::env::args().skip(1);
    let chosen: Vec<String> = arguments.filter(|name| !name.starts_with('-')).collect();
    for name in &chosen {
        let known = MEASURES.iter().any(|(known, _)| known == name);
        ensure!(known, "there is no measure {name:?}");
    }
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut lines = Vec::new();
    for (name, measure) in MEASURES {
        let is_usual = !LONG.contains(&name);
        if (chosen.is_empty() && is_usual) || chosen.iter().any(|chosen| chosen == name) {
            lines.extend(measure(cluster)?);
        }
    }
    table::print(&lines);
    Ok(())
}
