//! Time from a new Configuration to all of its Instances in the API server.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use futures::{StreamExt as _, TryStreamExt as _};
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::program::processor_time;
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::joined::{agent, client, collection, configure, instances, seconds, until_instances};
use crate::statistics::quantile;
use crate::table::Line;

/// Number of repetitions.
const TIMES: u32 = 3;
/// Number of concurrent writes of an agent.
const IN_FLIGHT: usize = 16;

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let node = cluster.nodes().first().context("no node")?;
    let server = cluster.server().pid()?;
    let mut lines = Vec::new();
    for (devices, target) in [(100, "≤ 1 s"), (1_000, "≤ 3 s")] {
        let (mut took, mut alone) = (Vec::new(), Vec::new());
        // Processor time of the API server, the agent and the kubelet, and of the API server for the client that does nothing else.
        let (mut used, mut server_alone) = ([Duration::ZERO; 3], Duration::ZERO);
        for number in 0..TIMES {
            let mut home = agent(cluster, node, &["mock-gpu"])?;
            home.start(&[])?;
            home.until("the handler is loaded", |status| {
                status
                    .pointer("/handlers/0/status")
                    .is_some_and(|is| is == "Waiting")
            })?;
            let space = cluster.namespace("many")?;
            let pids = [server, home.pid()?, node.kubelet_pid()?];
            let before = pids.map(processor_time);
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
            for ((used, pid), before) in used.iter_mut().zip(pids).zip(before) {
                *used += processor_time(pid)?.saturating_sub(before?);
            }
            home.stop(Signal::SIGTERM)?;
            let other = cluster.namespace("alone")?;
            let objects = instances(cluster, &space)?;
            let before = processor_time(server)?;
            alone.push(create(cluster, &other, objects)?);
            server_alone += processor_time(server)?.saturating_sub(before);
            drop((space, other));
            // The API server must not delete these Instances during the next measure.
            within(Duration::from_mins(2), "all Instances are deleted", || {
                let list = cluster.get("/apis/akri.sh/v0/instances?limit=1")?;
                let items = list.get("items").and_then(Value::as_array);
                ensure!(items.is_some_and(Vec::is_empty), "some are left");
                Ok(())
            })?;
        }
        took.sort();
        alone.sort();
        let mean = |sum: Duration| seconds(sum / TIMES);
        let [server_used, agent, kubelet] = used.map(mean);
        lines.push(Line {
            what: format!(
                "Configuration created → {devices} Instances in the API server, worst of {TIMES}"
            ),
            value: seconds(quantile(&took, 1.0)),
            target: target.into(),
            reference: format!(
                "median {}; the same objects created by a client that does nothing else, {IN_FLIGHT} at a time: worst {}, median {}; mean processor time of the API server {server_used}, the agent {agent}, the kubelet {kubelet}; of the API server for that client {}",
                seconds(quantile(&took, 0.5)),
                seconds(quantile(&alone, 1.0)),
                seconds(quantile(&alone, 0.5)),
                mean(server_alone)
            ),
        });
    }
    Ok(lines)
}

/// Measures the creation of these objects in another namespace.
fn create(
    cluster: &'static Cluster,
    space: &Namespace<'_>,
    objects: Vec<Value>,
) -> Result<Duration> {
    let path = collection(space, "instances");
    let requests = objects.into_iter().map(|mut object| {
        let metadata = object.pointer_mut("/metadata").context("no metadata")?;
        let name = metadata.get("name").cloned();
        *metadata = json!({"name": name, "annotations": metadata.get("annotations")});
        Ok(http::Request::post(&path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&object)?)?)
    });
    let requests = requests.collect::<Result<Vec<_>>>()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let client = runtime.block_on(client(cluster))?;
    let begun = Instant::now();
    let created = futures::stream::iter(requests)
        .map(|request| client.request::<Value>(request))
        .buffer_unordered(IN_FLIGHT)
        .try_collect::<Vec<_>>();
    runtime.block_on(created)?;
    Ok(begun.elapsed())
}
