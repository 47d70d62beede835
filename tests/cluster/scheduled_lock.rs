//! Optional lock of a node: pods get their devices one after the other, and a pod that is deleted or has ended blocks no other.

use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::scheduling::LOCKED;
use leafhost_tests::wait::eventually;

use crate::disturbances::Paused;
use crate::scheduled_field::{Field, agent_killed, ended_and_kept, name_again, soon, unbindable};

/// Annotation of nodes with the pod that holds the lock.
const LOCK: &str = "leafhost.dev/node-lock";
/// Number of pods created at once.
const CROWD: usize = 10;

#[test]
fn with_a_locked_node_pods_that_go_in_between_hold_up_no_other() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut field = Field::start(cluster, "scheduled-lock", "locked", &LOCKED)?;
    one_by_one(&field)?;
    deleted_before_admission(&field)?;
    ended_and_kept(&field)?;
    unbindable(&field)?;
    name_again(&field)?;
    agent_killed(&mut field)?;
    until_unlocked(&field)
}

/// Returns the lock of the first node.
fn lock(field: &Field) -> Result<String> {
    let path = format!("/api/v1/nodes/{}", field.node().name());
    let node = field.agents.cluster.get(&path)?;
    let lock = node["metadata"]["annotations"][LOCK].as_str();
    Ok(lock.unwrap_or_default().to_owned())
}

fn until_unlocked(field: &Field) -> Result<()> {
    eventually("the node is unlocked", || {
        let lock = lock(field)?;
        ensure!(lock.is_empty(), "it is locked: {lock}");
        Ok(())
    })
    .with_context(|| field.scheduling.log())
}

/// Checks that pods created at once each get their own device.
fn one_by_one(field: &Field) -> Result<()> {
    field.grow(CROWD)?;
    let begun = Instant::now();
    for index in 0..CROWD {
        field
            .space()
            .create(&field.gpu(&format!("crowd-{index}"), index))?;
    }
    for index in 0..CROWD {
        field.runs(&format!("crowd-{index}"), index)?;
    }
    println!(
        "{CROWD} pods run on a node with a lock {:?} after",
        begun.elapsed()
    );
    field.clear()?;
    until_unlocked(field)
}

/// Checks that a pod that waits for its kubelet keeps the node locked, and that the next one is bound once it is deleted.
fn deleted_before_admission(field: &Field) -> Result<()> {
    let space = field.space();
    let paused = Paused::new(field.node())?;
    space.create(&field.gpu("gone", 0))?;
    field.bound("gone")?;
    let uid = space.pod("gone")?["metadata"]["uid"].clone();
    let uid = uid.as_str().context("no uid")?.to_owned();
    let held = lock(field)?;
    ensure!(held.contains(&uid), "{held} is not of {uid}");
    space.create(&field.gpu("next", 1))?;
    eventually("the scheduler says what the pod waits for", || {
        let list = field.agents.cluster.get(&space.collection("events"))?;
        let mut all = list["items"].as_array().into_iter().flatten();
        let told = all.any(|event| {
            let text = event["message"].as_str().or(event["note"].as_str());
            event["involvedObject"]["name"] == "next"
                && text.is_some_and(|text| text.contains("is locked until"))
        });
        ensure!(told, "no event says so");
        Ok(())
    })
    .with_context(|| field.scheduling.log())
    .with_context(|| space.state())?;
    ensure!(
        lock(field)? == held,
        "it was {held}, it is {}",
        lock(field)?
    );
    let waiting = space.pod("next")?;
    ensure!(waiting["spec"]["nodeName"].is_null(), "{waiting:#}");
    space.delete_now("gone")?;
    let begun = Instant::now();
    field.bound("next")?;
    soon(
        "F1: the next pod is bound, the lock's pod being deleted,",
        begun,
    )?;
    drop(paused);
    let begun = Instant::now();
    field.runs("next", 1)?;
    soon("F1: it runs, the kubelet going on,", begun)?;
    field.clear()
}
