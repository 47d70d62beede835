//! Reboots of a node whose pods have devices: the pods that the kubelet does not admit again are counted, and all run again in the end.
//!
//! A reboot of these nodes keeps their network namespaces and restarts no kernel, so the file of the agent gets the id of another boot.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Namespace, Node};
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::device::{Site, variable};
use crate::installed::Release;
use crate::pair::used;
use crate::replaced::controller;

/// Devices of one slot each, and as many pods.
const DEVICES: [&str; 5] = ["one", "two", "three", "four", "five"];
/// Id of an earlier boot.
const OTHER_BOOT: &str = "00000000-0000-4000-8000-000000000000";

/// Pods of a Deployment.
#[derive(Default)]
struct Seen {
    /// Running containers by pod.
    running: BTreeMap<String, String>,
    /// Number of pods that the kubelet did not admit.
    rejected: usize,
}

impl Seen {
    fn pods(&self) -> Vec<&str> {
        self.running.keys().map(String::as_str).collect()
    }
}

fn look(cluster: &Cluster, space: &Namespace<'_>) -> Result<Seen> {
    let list = cluster.get(&space.collection("pods"))?;
    let mut seen = Seen::default();
    for pod in list["items"].as_array().context("no items")? {
        let status = &pod["status"];
        let container = &status["containerStatuses"][0];
        if status["reason"] == "UnexpectedAdmissionError" {
            seen.rejected += 1;
        } else if status["phase"] == "Running"
            && !container["state"]["running"].is_null()
            && let Some(name) = pod["metadata"]["name"].as_str()
            && let Some(id) = container["containerID"].as_str()
        {
            seen.running.insert(name.to_owned(), id.to_owned());
        }
    }
    Ok(seen)
}

/// Waits until there are as many running pods as devices, none with a container of `before`, and each with a device of its own.
fn until_running(cluster: &Cluster, space: &Namespace<'_>, before: &Seen) -> Result<Seen> {
    let old: BTreeSet<&String> = before.running.values().collect();
    let seen = eventually("all pods run", || {
        let seen = look(cluster, space)?;
        let is_new = seen.running.values().all(|id| !old.contains(id));
        ensure!(
            seen.running.len() == DEVICES.len() && is_new,
            "{:?}",
            seen.running
        );
        Ok(seen)
    })
    .with_context(|| space.state())?;
    let mut devices = BTreeSet::new();
    for pod in seen.pods() {
        let log = space.wait_logs(pod, "main", "DEBUG_ECHO_DESCRIPTION=")?;
        devices.extend(variable(&log, "DEBUG_ECHO_DESCRIPTION"));
    }
    ensure!(devices.len() == DEVICES.len(), "{devices:?}");
    Ok(seen)
}

/// Creates a Deployment whose pods request a device each, and waits until they run.
fn deploy(cluster: &Cluster, space: &Namespace<'_>, node: &Node, name: &str) -> Result<Seen> {
    let resource = format!("akri.sh/{name}");
    node.wait_allocatable(&resource, u64::try_from(DEVICES.len())?)?;
    let mut object = controller("Deployment", name, node, &resource);
    object["spec"]["replicas"] = DEVICES.len().into();
    let path = format!("/apis/apps/v1/namespaces/{}/deployments", space.name());
    cluster.api().create(&path, &object)?;
    until_running(cluster, space, &Seen::default())
}

/// Ends everything on the node, and changes what does not outlive a reboot.
fn cut(node: &Node, state: &Path) -> Result<()> {
    node.stop_kubelet(Signal::SIGKILL)?;
    node.stop_containers()?;
    fs::write(state.join("boot"), OTHER_BOOT)?;
    node.empty_run()
}

/// Waits until the Instances say that exactly these pods have a slot of the node, one each.
fn until_held(cluster: &Cluster, space: &Namespace<'_>, node: &str, pods: &Seen) -> Result<()> {
    let path = format!("/apis/akri.sh/v0/namespaces/{}/instances", space.name());
    let name = |pod: &str| format!("{}/{pod}", space.name());
    let expected: Vec<String> = pods.pods().into_iter().map(name).collect();
    eventually("each pod has one slot, and no other slot is in use", || {
        let list = cluster.get(&path)?;
        let all = list["items"].as_array().context("no items")?;
        let held = all
            .iter()
            .filter_map(|one| one["status"]["nodes"][node]["holders"].as_object());
        let mut holders: Vec<&str> = held
            .flat_map(|held| held.values())
            .filter_map(Value::as_str)
            .collect();
        holders.sort_unstable();
        let slots: usize = all.iter().map(|one| used(one).len()).sum();
        ensure!(
            holders == expected && slots == expected.len(),
            "{slots} slots, {holders:?}"
        );
        Ok(())
    })
    .with_context(|| space.state())
}

#[test]
fn after_a_reboot_with_the_agent_in_a_pod_each_pod_runs_again_with_a_slot_of_its_own() -> Result<()>
{
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let name = "reboot";
    let release = Release::install(cluster)?;
    release.add_handler("debug-echo")?;
    let node = release.nodes.first().context("no node")?;
    let space = cluster.namespace(name)?;
    let details = format!("{{shared: false, descriptions: [{}]}}", DEVICES.join(", "));
    let configuration = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": space.name(), "annotations": {"leafhost.dev/resources": "configuration"}},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": details}, "capacity": 1},
    });
    cluster.apply(&configuration.to_string())?;
    let before = deploy(cluster, &space, node, name).with_context(|| release.state())?;
    until_held(cluster, &space, node.name(), &before).with_context(|| release.state())?;
    let state = node.path("/var/lib/leafhost");

    cut(node, &state)?;
    let begun = Instant::now();
    node.start_kubelet()?;
    node.wait_ready()?;
    let after = until_running(cluster, &space, &before).with_context(|| release.state())?;
    println!(
        "agent in a pod: {} of {} pods were rejected, and all run {:?} after the start of the kubelet",
        after.rejected,
        DEVICES.len(),
        begun.elapsed()
    );
    until_held(cluster, &space, node.name(), &after).with_context(|| release.state())
}

#[test]
fn after_a_reboot_with_the_agent_before_the_kubelet_each_pod_runs_again_with_a_slot_of_its_own()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let name = "boot";
    let mut site = Site::new(cluster)?;
    let space = site.namespace(name)?;
    site.configure(name, 1, &DEVICES)?;
    site.home.start(&[])?;
    let before = deploy(cluster, &space, site.node, name)?;
    site.until_held_by(&space, &before.pods())?;
    let state = site.home.path().join("state");

    site.home.stop(Signal::SIGKILL)?;
    cut(site.node, &state)?;
    // As the systemd unit orders it.
    site.home.start(&[])?;
    let begun = Instant::now();
    site.node.start_kubelet()?;
    site.node.wait_ready()?;
    let after = until_running(cluster, &space, &before)?;
    println!(
        "agent before the kubelet: {} of {} pods were rejected, and all run {:?} after the start of the kubelet",
        after.rejected,
        DEVICES.len(),
        begun.elapsed()
    );
    site.until_held_by(&space, &after.pods())?;
    Ok(())
}
