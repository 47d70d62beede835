//! Pods of two stand-in nodes that compete for the slots of fifty devices: claims and releases per second, and the wait of the kubelet.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::contest::Contest;
use leafhost_tests::random::Random;
use leafhost_tests::slot_history::{Recorder, holders};
use leafhost_tests::stand_in_node::{StandInNode, configure, instances_path, name_of, until_seen};
use leafhost_tests::wait::within;
use serde_json::Value;

use crate::statistics::{ms, quantile};
use crate::table::Line;

const DEVICES: usize = 50;
/// Slots per device; many, because a slot is freed at the earliest five seconds after its allocation.
const SLOTS: usize = 20;
const CLAIMS: usize = 5_000;

pub fn measure(cluster: &'static Cluster) -> Result<Vec<Line>> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let space = cluster.namespace("competing")?;
    let mut nodes = Vec::new();
    for name in ["competing-a", "competing-b"] {
        let mut node = StandInNode::new(cluster, runtime.handle(), name)?;
        node.home.start(&[])?;
        nodes.push(node);
    }
    let devices: Vec<String> = (0..DEVICES)
        .map(|number| format!("device-{number}"))
        .collect();
    configure(
        cluster,
        space.name(),
        "competing",
        u32::try_from(SLOTS)?,
        &devices,
    )?;
    let found = until_seen(cluster.api(), space.name(), DEVICES, nodes.len())?;
    let instances: Vec<String> = found.iter().map(|one| name_of(one).to_owned()).collect();
    let all_listed = async {
        for node in &nodes {
            for instance in &instances {
                node.until_healthy(&format!("akri.sh/{instance}"), SLOTS)
                    .await?;
            }
        }
        anyhow::Ok(())
    };
    runtime.block_on(all_listed)?;
    let recorder = Recorder::start(cluster.api(), space.name())?;
    let contest = Contest {
        space: space.name().to_owned(),
        instances,
        pods: 20,
        claims: CLAIMS,
        wanted: DEVICES,
        lasts: (50, 250),
        asks: 1_000,
    };
    let begun = Instant::now();
    let mut outcome = runtime.block_on(contest.run(cluster.api(), &nodes, &mut Random::new(4)))?;
    within(Duration::from_mins(1), "all slots are free", || {
        let list = cluster.get(&instances_path(space.name()))?;
        let all = list
            .get("items")
            .and_then(Value::as_array)
            .context("no items")?;
        let used = all.iter().flat_map(holders).count();
        ensure!(used == 0, "{used} slots are used");
        Ok(())
    })?;
    let took = begun.elapsed();
    let history = recorder.finish()?;
    outcome.waits.sort();
    let claims = u32::try_from(outcome.waits.len())?;
    Ok(vec![Line {
        what: format!(
            "two nodes, {DEVICES} devices, stand-ins: claims with their releases a second / p99 of a claim"
        ),
        value: format!(
            "{:.0} / {}",
            f64::from(claims) / took.as_secs_f64(),
            ms(quantile(&outcome.waits, 0.99))
        ),
        target: "≥ 100 / ≤ 50 ms".into(),
        reference: format!(
            "{claims} claims, p50 {}; {} were refused; {} versions of Instances, a slot went to the other node {} times",
            ms(quantile(&outcome.waits, 0.5)),
            outcome.refused,
            history.versions,
            history.passed_on
        ),
    }])
}
