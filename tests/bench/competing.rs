//! Pods of two stand-in nodes that compete for the slots of fifty devices: claims and releases per second, and the wait of the kubelet.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::contest::Contest;
use leafhost_tests::program::processor_time;
use leafhost_tests::random::Random;
use leafhost_tests::slot_history::{Recorder, holders};
use leafhost_tests::stand_in_node::{StandInNode, configure, instances_path, name_of, until_seen};
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::joined::client;
use crate::statistics::{ms, quantile};
use crate::table::Line;

const DEVICES: usize = 50;
/// Slots per device; many, because a slot is freed at the earliest five seconds after its allocation.
const SLOTS: usize = 20;
const CLAIMS: usize = 5_000;
/// Number of nodes; the client that does nothing else writes as many claims at a time.
const WRITERS: usize = 2;
/// Time from a claim of that client to its release, the mean of a pod's.
const LASTS: Duration = Duration::from_millis(150);

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
    let server = cluster.server().pid()?;
    let agents = || -> Result<Duration> {
        let each = nodes.iter().map(|node| processor_time(node.home.pid()?));
        each.sum()
    };
    let (server_before, agents_before) = (processor_time(server)?, agents()?);
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
    let claimed = begun.elapsed();
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
    let server_used = processor_time(server)?.saturating_sub(server_before);
    let agents_used = agents()?.saturating_sub(agents_before);
    let history = recorder.finish()?;
    outcome.waits.sort();
    let claims = u32::try_from(outcome.waits.len())?;
    for node in &mut nodes {
        node.home.stop(Signal::SIGTERM)?;
    }
    let before = processor_time(server)?;
    let mut alone = runtime.block_on(patch_alone(cluster, space.name(), &contest.instances))?;
    let server_alone = processor_time(server)?.saturating_sub(before) / u32::try_from(CLAIMS)?;
    alone.waits.sort();
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
            "{claims} claims, p50 {}; {} were refused; {} versions of Instances, a slot went to the other node {} times; first to last claim {:.1} s, {:.2} × the time of a client that does nothing but {CLAIMS} such claims and releases, p50 {}, p99 {}; processor time of the API server for a claim with its release {}, of both agents {}, of the API server for that client {}",
            ms(quantile(&outcome.waits, 0.5)),
            outcome.refused,
            history.versions,
            history.passed_on,
            claimed.as_secs_f64(),
            claimed.as_secs_f64() / alone.took.as_secs_f64(),
            ms(quantile(&alone.waits, 0.5)),
            ms(quantile(&alone.waits, 0.99)),
            ms(server_used / claims),
            ms(agents_used / claims),
            ms(server_alone)
        ),
    }])
}

/// Time of the patches of a client that does nothing else.
struct Alone {
    took: Duration,
    /// Durations of the claims.
    waits: Vec<Duration>,
}

/// Measures [`CLAIMS`] claims with their releases as patches: for each node one claim at a time, as a kubelet admits pods, and
/// each release while other claims are made.
async fn patch_alone(cluster: &Cluster, space: &str, instances: &[String]) -> Result<Alone> {
    let client = client(cluster).await?;
    let begun = Instant::now();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let (client, space, instances) = (client.clone(), space.to_owned(), instances.to_vec());
        writers.spawn(async move {
            let (mut waits, mut releases) = (Vec::new(), JoinSet::new());
            for number in 0..CLAIMS / WRITERS {
                let instance = instances.get(number % DEVICES).context("no Instance")?;
                let path = format!("{}/{instance}", instances_path(&space));
                let turns = SLOTS / WRITERS;
                let slot = format!("{instance}-{}", writer * turns + number / DEVICES % turns);
                let asked = Instant::now();
                patch(&client, &path, &slot, "", "bare").await?;
                waits.push(asked.elapsed());
                let client = client.clone();
                releases.spawn(async move {
                    tokio::time::sleep(LASTS).await;
                    patch(&client, &path, &slot, "bare", "").await
                });
            }
            while let Some(released) = releases.join_next().await {
                released??;
            }
            anyhow::Ok(waits)
        });
    }
    let mut waits = Vec::new();
    while let Some(written) = writers.join_next().await {
        waits.extend(written??);
    }
    Ok(Alone {
        took: begun.elapsed(),
        waits,
    })
}

/// Changes a slot with a JSON Patch that tests its old value.
async fn patch(client: &kube::Client, path: &str, slot: &str, old: &str, new: &str) -> Result<()> {
    let path_of_slot = format!("/spec/deviceUsage/{slot}");
    let steps = json!([
        {"op": "test", "path": path_of_slot, "value": old},
        {"op": "add", "path": path_of_slot, "value": new},
    ]);
    let request = http::Request::patch(path)
        .header("content-type", "application/json-patch+json")
        .body(serde_json::to_vec(&steps)?)?;
    client.request::<Value>(request).await.map(drop)?;
    Ok(())
}
