//! Time from a new Configuration to all of its Instances in the API server.

use std::time::Instant;

use anyhow::{Context, Result};
use leafhost_tests::cluster::Cluster;
use nix::sys::signal::Signal;

use crate::joined::{agent, configure, seconds, until_instances};
use crate::statistics::quantile;
use crate::table::Line;

/// How often each.
const TIMES: usize = 3;

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let node = cluster.nodes().first().context("no node")?;
    let mut lines = Vec::new();
    for (devices, target) in [(100, "≤ 1 s"), (1_000, "≤ 3 s")] {
        let mut took = Vec::new();
        for number in 0..TIMES {
            let mut home = agent(cluster, node, &["mock-gpu"])?;
            home.start(&[])?;
            let space = cluster.namespace("many")?;
            let begun = Instant::now();
            let name = format!("many-{devices}-{number}");
            configure(
                cluster,
                &space,
                &name,
                "mock-gpu",
                &format!("count: {devices}"),
            )?;
            let all = until_instances(cluster, &space, devices, &home)?;
            took.push(all - begun);
            home.stop(Signal::SIGTERM)?;
        }
        took.sort();
        lines.push(Line {
            what: format!(
                "Configuration created → {devices} Instances in the API server, worst of {TIMES}"
            ),
            value: seconds(quantile(&took, 1.0)),
            target: target.into(),
            reference: format!("median {}", seconds(quantile(&took, 0.5))),
        });
    }
    Ok(lines)
}
