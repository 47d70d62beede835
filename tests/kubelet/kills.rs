//! The agent is killed repeatedly while pods start and end: no slot is lost, and none is allocated twice.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::kubelet::{Kubelet, Plugins};
use leafhost_tests::random::{self, Random};
use nix::sys::signal::Signal;
use tokio_util::sync::CancellationToken;

use crate::node::{Node, resource, usage_of, used};

const CAPACITY: usize = 3;
const DEVICES: [&str; 3] = ["a", "b", "c"];
const GRACE: [&str; 2] = ["--slot-grace", "1s"];

/// Starts and ends pods until it is cancelled. Returns the pods that are alive then, with the requested resource.
async fn come_and_go(
    kubelet: Kubelet,
    resources: Vec<String>,
    mut random: Random,
    mut alive: Vec<(String, String)>,
    stop: CancellationToken,
) -> Result<Vec<(String, String)>> {
    let mut number = 0;
    while !stop.is_cancelled() {
        number += 1;
        if random.below(5) < 3 {
            let resource = random.pick(&resources).context("no resource")?;
            let count = 1 + usize::try_from(random.below(2))?;
            let spec = PodSpec::asking(&format!("p{number}"), resource, count);
            let (uid, admitted) = kubelet.run_pod(&spec).await?;
            match admitted {
                Ok(()) => alive.push((uid, resource.clone())),
                Err(_) => kubelet.delete_pod(&uid)?,
            }
        } else if !alive.is_empty() {
            let which = usize::try_from(random.below(u64::try_from(alive.len())?))?;
            let (uid, _) = alive.swap_remove(which);
            kubelet.end_pod(&uid);
            kubelet.delete_pod(&uid)?;
        }
        tokio::time::sleep(Duration::from_millis(random.below(30))).await;
    }
    Ok(alive)
}

/// Returns the slots behind the pods' devices in the kubelet's records; fails if one occurs twice.
fn held(node: &Node, alive: &[(String, String)]) -> Result<BTreeSet<String>> {
    let mut slots = BTreeSet::new();
    for (uid, resource) in alive {
        let answer = node.kubelet.answer(uid, "main", resource);
        let pairs =
            answer.and_then(|answer| answer.annotations.get("slots.leafhost.dev/echo").cloned());
        let behind: BTreeMap<&str, &str> = pairs
            .iter()
            .flat_map(|pairs| pairs.split(' '))
            .filter_map(|pair| pair.split_once('='))
            .collect();
        for id in node.held(uid, resource) {
            let slot = behind
                .get(id.as_str())
                .map_or(id.clone(), |slot| (*slot).to_owned());
            ensure!(
                slots.insert(slot.clone()),
                "{slot} was given twice, to {uid} last"
            );
        }
    }
    Ok(slots)
}

fn kill(plugins: Plugins, rounds: usize, seed: u64) -> Result<()> {
    println!("{rounds} rounds, the kubelet knows {plugins:?}");
    let mut random = Random::new(seed);
    let mut node = Node::knowing(plugins)?.begin(CAPACITY, &DEVICES, &GRACE)?;
    let mut resources = vec!["akri.sh/echo".to_owned()];
    for device in DEVICES {
        resources.push(resource(&node.instance(device)?));
    }
    let mut alive = Vec::new();
    for round in 0..rounds {
        let stop = CancellationToken::new();
        let kubelet = (*node.kubelet).clone();
        kubelet.shuffle(random.below(u64::MAX));
        let going = come_and_go(
            kubelet,
            resources.clone(),
            random.split(),
            alive,
            stop.clone(),
        );
        let going = node.kubelet.spawn(going);
        let moment = Duration::from_millis(random.below(400));
        node.kubelet
            .wait(async { tokio::time::sleep(moment).await });
        node.home.stop(Signal::SIGKILL)?;
        stop.cancel();
        alive = node.kubelet.wait(going)??;
        let slots = held(&node, &alive).with_context(|| format!("round {round}"))?;

        node.home.start(&GRACE)?;
        node.until_listed(DEVICES.len() + 1)
            .with_context(|| format!("round {round}"))?;
        // No slot is lost. Slots that were claimed and never allocated are freed later.
        let used = used(&node.usage()?);
        ensure!(
            used.is_superset(&slots),
            "round {round}: {slots:?} are held, {used:?} are used\n{}",
            node.home.log()
        );
    }
    let slots = held(&node, &alive)?;
    let status = node.home.until("only what is held is used", |status| {
        used(&usage_of(status)) == slots
    })?;
    let foreign = usage_of(&status)
        .into_values()
        .find(|usage| !usage.is_empty() && !usage.ends_with("node-a"));
    ensure!(foreign.is_none(), "{foreign:?}");
    ensure!(node.kubelet.record().crashes.is_empty());
    ensure!(
        node.kubelet.record().answers.len() > rounds,
        "hardly anything was allocated"
    );
    for (uid, _) in &alive {
        node.delete(uid)?;
    }
    node.until_used(&BTreeSet::new())?;
    // All slots are available again.
    for name in resources.iter().skip(1) {
        node.kubelet
            .wait(node.kubelet.until_capacity(name, CAPACITY, CAPACITY))?;
        node.run("last", name, CAPACITY)?;
    }
    Ok(())
}

#[test]
fn an_agent_killed_at_any_moment_loses_no_slot_and_gives_none_twice() -> Result<()> {
    kill(Plugins::Newest, 20, 1)?;
    kill(Plugins::ByPath, 20, 1)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_killed_agents_with_pods() -> Result<()> {
    let seed = random::seed()?;
    kill(Plugins::Newest, random::rounds(500), seed)?;
    kill(Plugins::ByPath, random::rounds(500), seed)
}
