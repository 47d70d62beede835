//! The agent is killed while pods start and end: no slot is lost or allocated twice.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Namespace, Pod};
use leafhost_tests::random::{self, Random};
use nix::sys::signal::Signal;

use crate::device::Site;

const GRACE: [&str; 2] = ["--slot-grace", "5s"];

#[test]
fn an_agent_killed_while_pods_start_and_end_loses_no_slot_and_gives_none_twice() -> Result<()> {
    kill(10, 4)
}

/// Runs `SOAK_ROUNDS` rounds with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_agents_killed_while_pods_start_and_end() -> Result<()> {
    kill(random::rounds(100), random::seed()?)
}

/// Creates or deletes a pod `rounds` times, and kills the agent at a random moment of each.
fn kill(rounds: u64, seed: u64) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut random = Random::new(seed);
    let mut site = Site::new(cluster)?;
    let space = site.namespace("kill")?;
    site.configure("kill", 2, &["one", "another"])?;
    site.home.start(&GRACE)?;
    let instances = site.instances(2)?;
    let mut held: BTreeMap<String, String> = BTreeMap::new();
    let mut pods: Vec<String> = Vec::new();
    for round in 0..rounds {
        site.until_listed()?;
        let before = claims(&site);
        // At most three of four slots are in use.
        let ends = pods.len() == 3 || (!pods.is_empty() && random.below(3) == 0);
        if ends {
            let index = usize::try_from(random.below(3))? % pods.len();
            let pod = pods.swap_remove(index);
            let path = format!("{}/{pod}?gracePeriodSeconds=1", space.collection("pods"));
            cluster.api().delete(&path)?;
        } else {
            let mut free: Vec<&str> = instances
                .iter()
                .map(String::as_str)
                .filter(|name| held.keys().filter(|slot| slot.starts_with(name)).count() < 2)
                .collect();
            free.push("kill");
            let name = *random.pick(&free).context("no resource")?;
            let resource = format!("akri.sh/{name}");
            site.node.until("the resource is back", |node| {
                let all = node.pointer("/status/allocatable");
                let amount = all.and_then(|all| all.get(&resource)?.as_str());
                ensure!(!matches!(amount, None | Some("0")), "{all:?}");
                Ok(())
            })?;
            let main = Container::new("main").device(&resource, 1);
            let pod = format!("pod-{round}");
            space.create(&Pod::new(&pod, &[main]).on(site.node))?;
            pods.push(pod);
        }
        match random.below(3) {
            0 => random.moment(if ends { 2500 } else { 600 }),
            1 => {
                until_changed(&site, &before);
                random.moment(4);
            }
            _ => {
                until_changed(&site, &before);
                random.moment(500);
            }
        }
        site.home.stop(Signal::SIGKILL)?;
        site.home.start(&GRACE)?;
        settle(&space, &mut pods)?;
        let names: Vec<&str> = pods.iter().map(String::as_str).collect();
        held = site
            .until_held_by(&space, &names)
            .with_context(|| format!("round {round} of seed {seed}"))?;
        ensure!(held.len() == pods.len(), "round {round}: {held:?}");
    }
    Ok(())
}

/// Returns the texts of the Instance files.
fn claims(site: &Site) -> Vec<String> {
    let folder = site.home.path().join("state/instances/default");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut texts: Vec<String> = entries
        .filter_map(|entry| fs::read_to_string(entry.path()).ok())
        .collect();
    texts.sort();
    texts
}

/// Busy-waits until a claim or release is written, because the answer to the kubelet follows at once. The pod may be refused before.
fn until_changed(site: &Site, before: &[String]) {
    let end = Instant::now() + Duration::from_secs(5);
    while claims(site) == before && Instant::now() < end {
        std::hint::spin_loop();
    }
}

/// Waits until each pod runs; removes pods that the kubelet refused because the agent was down.
fn settle(space: &Namespace<'_>, pods: &mut Vec<String>) -> Result<()> {
    for pod in std::mem::take(pods) {
        let phase = space.until(&pod, "it runs or is refused", |found| {
            let phase = found
                .pointer("/status/phase")
                .and_then(|phase| phase.as_str());
            let phase = phase.unwrap_or_default();
            ensure!(["Running", "Failed"].contains(&phase), "{found:#}");
            Ok(phase.to_owned())
        })?;
        if phase == "Running" {
            pods.push(pod);
        } else {
            println!("{pod} was refused");
            space.delete(&pod)?;
        }
    }
    Ok(())
}
