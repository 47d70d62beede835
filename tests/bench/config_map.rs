//! Time from a handler's `ConfigMap`, whose Configuration waits, to the first Instance in the API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::agent::Home;
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::program::{self, handler, leafhost};
use leafhost_tests::wait::pass;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::joined::{agent, collection, configure, until_instances};
use crate::statistics::{ms, quantile};
use crate::table::Line;

/// Number of times each handler is created.
const TIMES: usize = 3;
/// File names, handlers, and details that find one device on every machine.
const HANDLERS: [(&str, &str, &str); 3] = [
    ("debug-echo", "debugEcho", "descriptions: [a]"),
    ("mock-gpu", "mock-gpu", "count: 1"),
    (
        "udev",
        "udev",
        "udevRules: ['SUBSYSTEM==\"mem\", KERNEL==\"null\"']",
    ),
];

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let node = cluster.nodes().first().context("no node")?;
    let (mut fresh, mut cached) = (Vec::new(), Vec::new());
    for (file, name, details) in HANDLERS {
        let object = config_map(file)?;
        for _ in 0..TIMES {
            let space = cluster.namespace("config-map")?;
            let mut home = agent(cluster, node, &[])?;
            home.start(&["--handlers-namespace", space.name()])?;
            let map = format!("{}/{file}", space.collection("configmaps"));
            for times in [&mut fresh, &mut cached] {
                configure(cluster, &space, "waits", name, details)?;
                times.push(create(cluster, &space, &object, &home)?);
                let waits = format!("{}/waits", collection(&space, "configurations"));
                cluster.api().delete(&waits)?;
                cluster.api().delete(&map)?;
                until_instances(cluster, &space, 0, &home)?;
                home.until("the handler is gone", |status| {
                    let handlers = status.get("handlers").and_then(Value::as_array);
                    let is_offline =
                        |handler: &Value| handler.get("status").is_some_and(|is| is == "Offline");
                    handlers.is_some_and(|all| all.iter().all(is_offline))
                })?;
            }
            home.stop(Signal::SIGTERM)?;
        }
    }
    let line = |what: &str, target: &str, times: &mut Vec<Duration>| {
        times.sort();
        Line {
            what: format!(
                "ConfigMap created → first Instance in the API server, {what}, worst of {}",
                times.len()
            ),
            value: ms(quantile(times, 1.0)),
            target: target.to_owned(),
            reference: format!("median {}", ms(quantile(times, 0.5))),
        }
    };
    Ok(vec![
        line("not cached", "≤ 2 s", &mut fresh),
        line("from the cache", "≤ 500 ms", &mut cached),
    ])
}

/// Returns the object that a user would apply.
fn config_map(file: &str) -> Result<Value> {
    let wasm = handler(file)?;
    let arguments = ["handler".as_ref(), "configmap".as_ref(), wasm.as_os_str()];
    let object = program::run(leafhost()?, arguments)?.good()?;
    Ok(serde_saphyr::from_str(&object)?)
}

/// Creates the object and returns the time until the Instance exists.
fn create(
    cluster: &Cluster,
    space: &Namespace<'_>,
    object: &Value,
    home: &Home,
) -> Result<Duration> {
    home.until("the Configuration waits", |status| {
        status.pointer("/configurations/0").is_some()
    })?;
    // The agent is idle by then.
    pass(Duration::from_millis(500))?;
    let begun = Instant::now();
    let all = space.collection("configmaps");
    cluster.api().create(&all, object)?;
    let seen = until_instances(cluster, space, 1, home)?;
    ensure!(seen > begun);
    Ok(seen - begun)
}
