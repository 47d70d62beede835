//! Nodes that are disconnected or die: the slot of a pod that may still run is never reallocated, and the slots of deleted nodes are free within
//! seconds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{Cluster, Container, Pod};
use leafhost_tests::requirement;
use leafhost_tests::slot_history::{Holders, Recorder, holders};
use leafhost_tests::stand_in_node::{configure, instances_path, name_of, until_seen};
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::away::Own;
use crate::device::Site;
use crate::disturbances::Controllers;

/// Upper bound for the slots of a deleted node to be free.
const RELEASED: Duration = Duration::from_secs(10);
/// Upper bound for a broken connection to be noticed.
const HEALED: Duration = Duration::from_mins(4);
const SLOTS: u32 = 4;

#[test]
fn a_node_that_is_cut_off_keeps_the_slots_of_its_pods_and_one_that_is_gone_does_not() -> Result<()>
{
    partition(Duration::from_secs(15), true)
}

#[test]
#[ignore = "takes a quarter of an hour: make soak"]
fn soak_a_node_is_cut_off_for_ten_minutes() -> Result<()> {
    partition(Duration::from_mins(10), false)
}

/// Disconnects a node for `lasting`. With `is_told`, the Node object claims a longer time, because `lasting` may be too short for the controller.
fn partition(lasting: Duration, is_told: bool) -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    let own = Own::start(3)?;
    let cluster = own.0;
    cluster.define()?;
    let space = cluster.namespace("cut")?;
    let mut sites = Vec::new();
    for taken in cluster.take_nodes(3)? {
        let mut site = Site::joined(cluster, taken, &space)?;
        site.home.start(&[])?;
        sites.push(site);
    }
    let [a, mut b, mut c] = <[Site; 3]>::try_from(sites)
        .ok()
        .context("not three nodes")?;
    let _controllers = Controllers::start(cluster, &space)?;
    configure(
        cluster,
        space.name(),
        "cut",
        SLOTS,
        &["used".to_owned(), "unused".to_owned()],
    )?;
    let found = until_seen(cluster.api(), space.name(), 2, 3).with_context(|| space.state())?;
    let of_device = |device: &str| {
        let found = found
            .iter()
            .find(|one| one["spec"]["leafhost"]["id"] == device);
        found.map(name_of).context("no Instance")
    };
    let (used, unused) = (of_device("used")?, of_device("unused")?);
    let read = |name: &str| cluster.get(&format!("{}/{name}", instances_path(space.name())));
    let resource = format!("akri.sh/{used}");
    let pod = |name: &str, site: &Site| {
        let main = Container::new("main").device(&resource, 1);
        // Without a toleration the pod would be deleted once its node was disconnected for five minutes.
        Pod::new(name, &[main])
            .on(site.node)
            .with("tolerations", json!([{"operator": "Exists"}]))
    };
    let recorder = Recorder::start(cluster.api(), space.name())?;
    for site in [&a, &b, &c] {
        space.run(&pod(site.node.name(), site))?;
    }
    let container = space.container(b.node.name())?;
    let before = holders(&read(used)?);
    ensure!(before.len() == 3, "{before:?}");
    let has = |node: &str, holders: &Holders| -> Vec<String> {
        let own = holders.iter().filter(|(_, holder)| *holder == node);
        own.map(|(slot, _)| slot.clone()).collect()
    };
    let slot = has(b.node.name(), &before);

    b.node.connect(false)?;
    let cut = Instant::now();
    if is_told {
        say_not_ready(cluster, b.node.name())?;
    }
    let sees_unused = |node: &str| -> Result<bool> {
        let nodes = read(unused)?["spec"]["nodes"].clone();
        Ok(nodes
            .as_array()
            .context("no nodes")?
            .iter()
            .any(|one| one == node))
    };
    let until_away = |site: &Site, least: Duration| {
        let what = "the controller takes the node for one that is away";
        within(least + HEALED, what, || {
            let sees = sees_unused(site.node.name())?;
            ensure!(!sees, "it is still a node of {unused}");
            ensure!(cut.elapsed() >= least, "not long enough");
            Ok(())
        })
        .with_context(|| space.state())
    };
    until_away(&b, lasting)?;
    ensure!(holders(&read(used)?) == before, "{:?}", read(used)?);
    // One more pod takes the only free slot, and none is left for another.
    space.run(&pod("more", &a))?;
    space.create(&pod("waits", &a))?;
    space.wait_unschedulable("waits")?;

    b.node.connect(true)?;
    println!("the node was cut off for {:?}", cut.elapsed());
    within(HEALED, "the node has its place again", || {
        ensure!(sees_unused(b.node.name())?, "it is no node of {unused}");
        Ok(())
    })
    .with_context(|| space.state())?;
    b.node.wait_ready()?;
    let after = holders(&read(used)?);
    ensure!(
        has(b.node.name(), &after) == slot && after.len() == 4,
        "{after:?}"
    );
    ensure!(
        space.container(b.node.name())? == container,
        "its pod was started again"
    );
    b.until_listed()?;
    space.wait_unschedulable("waits")?;

    for site in [&mut b, &mut c] {
        site.home.stop(Signal::SIGKILL)?;
        site.node.stop_kubelet(Signal::SIGKILL)?;
        site.node.stop_containers()?;
    }
    ensure!(
        holders(&read(used)?) == after,
        "nobody knows yet that they are gone"
    );
    // The pod with the slot still exists and might run.
    say_not_ready(cluster, b.node.name())?;
    until_away(&b, Duration::ZERO)?;
    ensure!(
        holders(&read(used)?) == after,
        "the slot of a pod that may run is free"
    );
    let taint = "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute";
    cluster.kubectl(&["taint", "nodes", b.node.name(), taint])?;
    released(b.node.name(), || read(used)).with_context(|| space.state())?;
    ensure!(
        has(c.node.name(), &holders(&read(used)?)).len() == 1,
        "another node's slot is free, too"
    );
    cluster
        .api()
        .delete(&format!("/api/v1/nodes/{}", c.node.name()))?;
    until_away(&c, Duration::ZERO)?;
    ensure!(
        has(c.node.name(), &holders(&read(used)?)).len() == 1,
        "the slot of a pod that the API server has is free"
    );
    let pod_of_c = format!("{}/{}", space.collection("pods"), c.node.name());
    cluster
        .api()
        .delete(&format!("{pod_of_c}?gracePeriodSeconds=0"))?;
    released(c.node.name(), || read(used)).with_context(|| space.state())?;
    space.wait_running("waits")?;
    let history = recorder.finish()?;
    println!("{} versions", history.versions);
    Ok(())
}

/// Waits until a node holds no slot.
fn released(node: &str, read: impl Fn() -> Result<Value>) -> Result<()> {
    let begun = Instant::now();
    within(
        RELEASED,
        "the slots of a node that is gone are free",
        || {
            let holders = holders(&read()?);
            ensure!(holders.values().all(|holder| holder != node), "{holders:?}");
            Ok(())
        },
    )?;
    println!("the slots of {node} were free after {:?}", begun.elapsed());
    Ok(())
}

/// Sets the Node object to not Ready since years ago, which the node's kubelet cannot correct.
fn say_not_ready(cluster: &Cluster, node: &str) -> Result<()> {
    let path = format!("/api/v1/nodes/{node}");
    let mut conditions = cluster.get(&path)?["status"]["conditions"].clone();
    for condition in conditions.as_array_mut().context("no conditions")? {
        if condition["type"] == "Ready" {
            condition["status"] = "Unknown".into();
            condition["lastTransitionTime"] = "2020-01-01T00:00:00Z".into();
        }
    }
    let status = json!({"status": {"conditions": conditions}});
    cluster
        .api()
        .merge(&format!("{path}/status"), &status)
        .map(drop)
}
