//! Memory of an agent in a cluster, with all its handlers and many devices.

use std::time::Duration;

use anyhow::{Context, Result};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::program::leafhost;
use leafhost_tests::wait::pass;
use serde_json::Value;

use crate::installed::{DEVICES_OF_EACH, HANDLERS, ONE_OF_EACH};
use crate::joined::{agent, configure, until_instances};
use crate::process::{Memory, forget, mb};
use crate::table::Line;

const INSTANCES: usize = 100;
/// Time after which the memory that the start took is free again.
const CALM: Duration = Duration::from_secs(20);

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let node = cluster.nodes().first().context("no node")?;
    forget(&leafhost()?)?;
    let mut home = agent(cluster, node, &HANDLERS)?;
    home.start(&[])?;
    let space = cluster.namespace("in-use")?;
    for (_, name, handler, details) in ONE_OF_EACH {
        configure(cluster, &space, name, handler, details)?;
    }
    let more = format!("count: {}", INSTANCES - DEVICES_OF_EACH);
    configure(cluster, &space, "more", "mock-gpu", &more)?;
    until_instances(cluster, &space, INSTANCES, &home)?;
    home.until("all handlers are in use", |status| {
        let handlers = status.get("handlers").and_then(Value::as_array);
        let is_active = |handler: &&Value| handler.get("status").is_some_and(|is| is == "Active");
        handlers.is_some_and(|all| all.iter().filter(is_active).count() == HANDLERS.len())
    })?;
    pass(CALM)?;
    let memory = Memory::of(home.pid()?)?;
    Ok(vec![Line {
        what: format!(
            "agent's memory in a cluster, {} handlers in use, {INSTANCES} Instances",
            HANDLERS.len()
        ),
        value: mb(memory.resident),
        target: "≤ 40 MB".into(),
        reference: format!(
            "{} of it its own, the rest pages of the program",
            mb(memory.anonymous)
        ),
    }])
}
