//! Pods on two nodes compete for the only slot of a device: every version of the Instance shows one owner, and none takes over from another. With as
//! many slots of a Configuration as pods, each pod gets one.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::random::{self, Random};
use leafhost_tests::slot_history::Recorder;

use crate::pair::{Pair, resource, used};

#[test]
fn a_slot_that_two_nodes_compete_for_never_has_two_owners() -> Result<()> {
    contest(10, 4)
}

/// Runs `SOAK_ROUNDS` rounds with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_nodes_that_compete_for_a_slot() -> Result<()> {
    contest(random::rounds(100), random::seed()?)
}

#[test]
fn as_many_pods_of_two_nodes_as_a_configuration_has_slots_all_run() -> Result<()> {
    fill(3)
}

/// Runs `SOAK_ROUNDS` rounds.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_pods_of_two_nodes_that_want_all_slots_of_a_configuration() -> Result<()> {
    fill(random::rounds(60))
}

/// Creates six pods at the same time for the six slots of three devices, `rounds` times.
fn fill(rounds: u64) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let pair = Pair::start(cluster, "fill", &[])?;
    let devices = ["one", "two", "three"];
    pair.configure_with(
        2,
        &devices,
        "{MODE: fast}",
        "leafhost.dev/resources: configuration",
    )?;
    pair.until("both nodes see the devices", &devices, |_| true)?;
    let resource = format!("akri.sh/{}", pair.name());
    for round in 0..rounds {
        for site in &pair.sites {
            site.node.wait_allocatable(&resource, 3)?;
        }
        let pods: Vec<(usize, String)> = (0..6)
            .map(|number| (number % 2, format!("p-{round}-{number}")))
            .collect();
        for (node, pod) in &pods {
            let site = pair.sites.get(*node).context("no such node")?;
            let main = Container::new("main").device(&resource, 1);
            pair.space.create(&Pod::new(pod, &[main]).on(site.node))?;
        }
        for (_, pod) in &pods {
            pair.space.wait_running(pod)?;
        }
        let held = pair.until("all slots are used", &devices, |one| used(one).len() == 2)?;
        let nodes = held.values().flat_map(|one| used(one).into_values());
        let nodes: BTreeSet<&str> = nodes.collect();
        ensure!(
            nodes.len() == 6,
            "each pod has a slot of its own: {nodes:?}"
        );
        for (_, pod) in &pods {
            pair.space.delete(pod)?;
        }
        pair.until("all slots are free", &devices, |one| used(one).is_empty())?;
    }
    Ok(())
}

fn contest(rounds: u64, seed: u64) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut random = Random::new(seed);
    let pair = Pair::start(cluster, "contest", &[])?;
    pair.configure(1, &["one"], "{MODE: fast}")?;
    let found = pair.until("both nodes see the device", &["one"], |_| true)?;
    let resource = resource(&found["one"]);
    let recorder = Recorder::start(cluster.api(), pair.space.name())?;
    let (mut refused, mut passed_on) = (0, 0);
    for round in 0..rounds {
        for site in &pair.sites {
            site.node.wait_allocatable(&resource, 1)?;
        }
        let mut pods = [(0, format!("a-{round}")), (1, format!("b-{round}"))];
        if random.below(2) == 0 {
            pods.reverse();
        }
        for (node, pod) in &pods {
            pair.space.create(&pair.pod(pod, *node, &found["one"])?)?;
            random.moment(20);
        }
        let mut winners = Vec::new();
        let mut losers = Vec::new();
        for (_, pod) in &pods {
            let phase = pair.space.until(pod, "it runs or not", |pod| {
                let phase = pod["status"]["phase"].as_str().unwrap_or_default();
                let waits = pod["status"]["conditions"][0]["reason"] == "Unschedulable";
                ensure!(phase != "Pending" || waits, "{pod:#}");
                Ok(phase.to_owned())
            })?;
            match &*phase {
                "Running" => winners.push(pod),
                phase => losers.push((pod, phase == "Failed")),
            }
        }
        let (Some(winner), Some((loser, failed))) = (winners.pop(), losers.pop()) else {
            anyhow::bail!("round {round}: {winners:?} run\n{}", pair.space.state());
        };
        pair.space.delete(winner)?;
        if failed {
            refused += 1;
        } else {
            passed_on += 1;
            pair.space.wait_running(loser)?;
        }
        pair.space.delete(loser)?;
        let free = pair.until("the slot is free", &["one"], |one| used(one).is_empty())?;
        let slots = free["one"]["spec"]["deviceUsage"].as_object();
        ensure!(slots.is_some_and(|slots| slots.len() == 1), "{slots:?}");
    }
    let versions = recorder.finish()?.versions;
    println!("{versions} versions; {refused} pods were refused, {passed_on} waited");
    ensure!(
        versions >= usize::try_from(2 * rounds)?,
        "only {versions} versions were seen"
    );
    Ok(())
}
