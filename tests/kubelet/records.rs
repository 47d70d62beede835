//! Kubelet whose records cannot be read, or that has lost them.

use std::time::Duration;

use anyhow::{Result, bail, ensure};
use leafhost_tests::kubelet::Restart;
use leafhost_tests::kubelet::faults::Trouble;
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::{Kind, PodSpec};
use leafhost_tests::wait::within;
use nix::sys::signal::Signal;
use tonic::Code;

use crate::node::{Node, SOON, ids, resource, used};

/// Time to wait for a wrong release: five seconds, the grace, and some observations.
const A_WHILE: Duration = Duration::from_secs(8);

/// Checks that these slots stay in use for a while.
fn stays_used(node: &Node, slots: &std::collections::BTreeSet<String>) -> Result<()> {
    let freed = within(A_WHILE, "a slot comes back", || {
        let now = used(&node.usage()?);
        ensure!(now != *slots, "none does");
        Ok(now)
    });
    match freed {
        Ok(now) => bail!("{now:?} are used instead of {slots:?}\n{}", node.home.log()),
        Err(_) => Ok(()),
    }
}

#[test]
fn no_error_of_podresources_frees_a_slot_and_each_is_named() -> Result<()> {
    let error = Trouble::Error(Code::Internal, "out of sorts".to_owned());
    std::thread::scope(|scope| {
        let both = [(error, "out of sorts"), (Trouble::Silent, "did not answer")]
            .map(|(trouble, words)| scope.spawn(move || frees_nothing(trouble, words)));
        for one in both {
            one.join().unwrap()?;
        }
        Ok(())
    })
}

fn frees_nothing(trouble: Trouble, words: &str) -> Result<()> {
    let node = Node::with(2, &["foo"], &SOON)?;
    let own = resource(&node.instance("foo")?);
    let uids = [node.run("p", &own, 1)?, node.run("q", &own, 1)?];
    let slots = used(&node.usage()?);
    node.kubelet.faults().trouble_pod_resources(Some(trouble));
    // One pod runs and one ends unseen: the agent cannot distinguish them.
    node.delete(&uids[1])?;
    node.until_trouble(words)?;
    stays_used(&node, &slots)?;
    node.kubelet.faults().trouble_pod_resources(None);
    node.until_no_trouble()?;
    node.until_used(&node.held(&uids[0], &own))?;
    node.delete(&uids[0])?;
    node.until_used(&[].into())
}

#[test]
fn slow_podresources_hold_no_allocation_up_and_free_what_is_free() -> Result<()> {
    let node = Node::with(2, &["a"], &SOON)?;
    let own = resource(&node.instance("a")?);
    let slow = Trouble::Slow(Duration::from_millis(1500));
    node.kubelet.faults().trouble_pod_resources(Some(slow));
    let keeps = node.run("keeps", &own, 1)?;
    let ends = node.run("ends", &own, 1)?;
    let took = within(Duration::from_secs(1), "both slots are used", || {
        let used = used(&node.usage()?);
        ensure!(used.len() == 2, "{used:?}");
        Ok(())
    });
    took?;
    node.delete(&ends)?;
    node.until_used(&node.held(&keeps, &own))
}

#[test]
fn an_id_whose_record_the_kubelet_has_lost_is_given_to_nobody_while_its_pod_is_active() -> Result<()>
{
    let node = Node::with(1, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    let (own, slot) = (resource(&name), format!("{name}-0"));
    let uid = node.run("holder", &own, 1)?;
    // The UID is in the checkpoint, which the agent reads along with PodResources.
    node.home.until("it is seen who has it", |status| {
        status.to_string().contains(r#""holder":"default/holder""#)
    })?;
    node.kubelet.wait(node.kubelet.restart(Restart {
        lose_checkpoint: true,
        ..Restart::default()
    }))?;
    node.until("the resource is known again", |kubelet| {
        ensure!(!kubelet.devices(&own).is_empty());
        Ok(())
    })?;
    // The agent refuses the slot before and after its list has it as Unhealthy.
    let Err(status) = node.ask(&own, &[vec![slot.clone()]])? else {
        bail!("{slot} was given twice");
    };
    assert_eq!(status.code(), Code::ResourceExhausted, "{status}");
    ensure!(status.message().contains(&slot), "{status}");
    node.until_health(&own, &slot, "Unhealthy")?;
    let spec = PodSpec::asking("other", &own, 1);
    let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
    ensure!(
        matches!(refused, Err(Refusal::NoneHealthy(_))),
        "{refused:?}"
    );
    let spec = PodSpec::asking("other", "akri.sh/echo", 1);
    let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
    ensure!(
        refused.is_err(),
        "its slot was given through the Configuration"
    );
    stays_used(&node, &ids([&slot]))?;

    // A pod that has ended may keep its folder for long, and is not among the active ones.
    node.kubelet.end_pod(&uid);
    node.until_used(&[].into())?;
    node.until_health(&own, &slot, "Healthy")?;
    node.run("next", &own, 1)?;
    Ok(())
}

#[test]
fn a_kubelet_that_has_lost_its_record_and_says_nothing_gets_no_id_of_a_pod_that_is_there()
-> Result<()> {
    let node = Node::with(1, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    let (own, slot) = (resource(&name), format!("{name}-0"));
    node.run("holder", &own, 1)?;
    node.home.until("it is seen who has it", |status| {
        status.to_string().contains(r#""holder":"default/holder""#)
    })?;
    let error = Trouble::Error(Code::Unavailable, "not now".to_owned());
    node.kubelet.faults().trouble_pod_resources(Some(error));
    node.kubelet.wait(node.kubelet.restart(Restart {
        lose_checkpoint: true,
        ..Restart::default()
    }))?;
    node.until("the resource is known again", |kubelet| {
        ensure!(!kubelet.devices(&own).is_empty());
        Ok(())
    })?;
    let answer = node.ask(&own, &[vec![slot.clone()]])?;
    ensure!(answer.is_err(), "{slot} was given twice");
    Ok(())
}

#[test]
fn slots_stay_used_while_a_kubelet_does_not_know_its_pods_yet() -> Result<()> {
    let node = Node::with(1, &["foo"], &SOON)?;
    let own = resource(&node.instance("foo")?);
    let uid = node.run("p", &own, 1)?;
    let held = node.held(&uid, &own);
    node.kubelet.wait(node.kubelet.restart(Restart {
        without_pods: true,
        ..Restart::default()
    }))?;
    stays_used(&node, &held)?;
    node.kubelet.learn_pods()?;
    node.until_listed(2)?;
    // The checkpoint alone has only the UID of the pod.
    node.home.until("it is seen by its name", |status| {
        status.to_string().contains(r#""holder":"default/p""#)
    })?;
    assert_eq!(used(&node.usage()?), held);
    node.delete(&uid)?;
    node.until_used(&[].into())
}

#[test]
fn a_slot_whose_record_the_kubelet_has_lost_is_given_to_nobody_by_an_agent_that_starts_then()
-> Result<()> {
    let mut node = Node::with(5, &["foo"], &[])?;
    let name = node.instance("foo")?;
    let own = resource(&name);
    let holder = node.run("holder", &own, 1)?;
    let held = node.held(&holder, &own);
    let slot = held.first().cloned().unwrap_or_default();
    node.home.until("it is seen who has it", |status| {
        status.to_string().contains(r#""holder":"default/holder""#)
    })?;
    node.kubelet.wait(node.kubelet.restart(Restart {
        lose_checkpoint: true,
        ..Restart::default()
    }))?;
    node.until_trouble(&format!("{slot} (default/holder)"))?;
    node.home.stop(Signal::SIGKILL)?;
    node.home.start(&[])?;
    node.until_listed(2)?;
    node.until_health(&own, &slot, "Unhealthy")?;
    // The other slots wait until the handler has reported the device.
    let others = (0..5).map(|number| format!("{name}-{number}"));
    for other in others.filter(|other| *other != slot) {
        node.until_health(&own, &other, "Healthy")?;
    }
    node.until_trouble("has no record of slots")?;
    for number in 0..4 {
        let uid = node.run(&format!("p{number}"), &own, 1)?;
        ensure!(!node.held(&uid, &own).contains(&slot), "{slot} was given");
    }
    for asked in [own.as_str(), "akri.sh/echo"] {
        let spec = PodSpec::asking("last", asked, 1);
        let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
        ensure!(refused.is_err(), "{slot} was given through {asked}");
    }
    Ok(())
}

/// Upper bound for a slot that no pod can have to be freed.
const SOON_FREE: Duration = Duration::from_secs(15);

#[test]
fn what_a_killed_agent_claimed_and_never_answered_is_free_within_fifteen_seconds() -> Result<()> {
    let mut node = Node::with(2, &["foo"], &[])?;
    let name = node.instance("foo")?;
    let own = resource(&name);
    let keeps = node.run("keeps", &own, 1)?;
    let kept = node.held(&keeps, &own);
    let free = (0..2).map(|slot| format!("{name}-{slot}"));
    let free: Vec<String> = free.filter(|id| !kept.contains(id)).collect();
    node.home.stop(Signal::SIGKILL)?;
    // The state that a kill between the claim and the answer leaves.
    let file = format!("state/instances/default/{name}.yaml");
    let path = node.home.path().join(&file);
    let text = std::fs::read_to_string(&path)?;
    let claimed = text.replace(
        &format!("{}: \"\"", free[0]),
        &format!("{}: node-a", free[0]),
    );
    ensure!(claimed != text, "{text}");
    node.home.write(&file, claimed)?;
    node.home.start(&[])?;
    ensure!(used(&node.usage()?).len() == 2);
    within(SOON_FREE, "it is free", || {
        ensure!(used(&node.usage()?) == kept);
        Ok(())
    })?;
    node.until_health(&own, &free[0], "Healthy")?;
    node.run("next", &own, 1)?;
    Ok(())
}

#[test]
fn the_slot_of_a_pod_that_was_rejected_for_another_reason_is_free_within_fifteen_seconds()
-> Result<()> {
    let node = Node::with(2, &["foo", "bar"], &[])?;
    let mut names = [node.instance("foo")?, node.instance("bar")?];
    names.sort();
    let [first, second] = names.map(|name| resource(&name));
    // The kubelet asks for the resources in order; the second one has too few devices.
    let spec = PodSpec::new("p").with(Kind::App, "main", &[(&first, 1), (&second, 3)]);
    let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
    ensure!(
        matches!(refused, Err(Refusal::TooFew { .. })),
        "{refused:?}"
    );
    ensure!(used(&node.usage()?).len() == 1);
    within(SOON_FREE, "it is free", || {
        ensure!(used(&node.usage()?).is_empty());
        Ok(())
    })?;
    Ok(())
}
