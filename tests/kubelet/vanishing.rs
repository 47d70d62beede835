//! Devices that disappear and come back while pods get them or have them.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::random::{self, Random};
use leafhost_tests::wait::within;

use crate::node::{Node, SOON, ids, resource, used};

/// Runs `rounds` rounds: the kubelet holds the answer to a pod's Allocate; meanwhile the device disappears.
fn unplug(rounds: usize, seed: u64) -> Result<()> {
    println!("{rounds} rounds");
    let mut random = Random::new(seed);
    let node = Node::with(rounds + 1, &["foo", "other"], &SOON)?;
    let name = node.instance("foo")?;
    let own = resource(&name);
    let mut uids = Vec::new();
    let mut held = std::collections::BTreeSet::new();
    for round in 0..rounds {
        let faults = node.kubelet.faults();
        let answers = node.kubelet.record().answers.len();
        faults.hold_answers(true);
        let kubelet = (*node.kubelet).clone();
        let spec = PodSpec::asking(&format!("p{round}"), &own, 1);
        let pod = node
            .kubelet
            .spawn(async move { kubelet.run_pod(&spec).await });
        node.until("the answer has come", |kubelet| {
            ensure!(kubelet.record().answers.len() > answers);
            Ok(())
        })?;
        let answer = node.kubelet.record().answers.pop().context("none")?;
        ensure!(answer.refused.is_none(), "round {round}: {answer:?}");
        let id = answer.ids.first().context("no id")?.clone();
        node.echo(rounds + 1, &["other"])?;
        node.until_health(&own, &id, "Unhealthy")?;
        // The answer is about 500 ms late in total; settling takes 200 ms of it.
        let late = Duration::from_millis(random.below(300));
        node.kubelet.wait(async { tokio::time::sleep(late).await });
        faults.hold_answers(false);
        let (uid, admitted) = node.kubelet.wait(pod)??;
        admitted.with_context(|| format!("round {round}"))?;
        ensure!(held.insert(id), "round {round}: {answer:?} was given twice");
        uids.push(uid);

        node.echo(rounds + 1, &["foo", "other"])?;
        let free = rounds - round;
        node.until("the device is back", |kubelet| {
            let now = kubelet.capacity(&own);
            ensure!(
                now.is_some_and(|(_, healthy)| healthy >= free),
                "round {round}: {now:?}"
            );
            Ok(())
        })?;
        // The slots are the pods' again, although the Instance was recreated.
        node.until_used(&held)
            .with_context(|| format!("round {round}\n{}", node.home.log()))?;
    }
    assert_eq!(node.kubelet.record().crashes, [""; 0]);
    for uid in &uids {
        node.delete(uid)?;
    }
    node.until_used(&[].into())
}

#[test]
fn a_device_unplugged_while_its_answer_is_under_way_crashes_no_kubelet_and_stays_the_pods()
-> Result<()> {
    unplug(20, 1)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_unplugged_devices() -> Result<()> {
    unplug(random::rounds(200), random::seed()?)
}

#[test]
fn a_used_device_that_goes_and_comes_back_is_its_pods_and_nobody_elses() -> Result<()> {
    let node = Node::with(1, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    let slot = format!("{name}-0");
    let own = resource(&name);
    for asked in [own.as_str(), "akri.sh/echo"] {
        let uid = node.run("p", asked, 1)?;
        let held = node.held(&uid, asked);
        let id = held.first().context("nothing")?;
        node.home.until("it is seen who has it", |status| {
            status.to_string().contains(r#""holder":"default/p""#)
        })?;
        node.echo(1, &[])?;
        node.home.instances(0)?;
        node.until_health(asked, id, "Unhealthy")?;
        node.until_trouble(&format!("{slot} (default/p)"))?;
        assert_eq!(node.held(&uid, asked), held);
        for resource in [own.as_str(), "akri.sh/echo"] {
            let spec = PodSpec::asking("thief", resource, 1);
            let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
            // The kubelet ignores a resource that is no longer offered.
            ensure!(
                refused.is_err() || node.kubelet.capacity(resource).is_none(),
                "{resource}"
            );
        }

        node.echo(1, &["foo"])?;
        node.until_used(&ids([&slot]))?;
        node.until_health(asked, id, "Healthy")?;
        node.until_no_trouble()?;
        for resource in [own.as_str(), "akri.sh/echo"] {
            let spec = PodSpec::asking("thief", resource, 1);
            let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
            ensure!(refused.is_err(), "{resource}: the slot was given away");
        }
        assert_eq!(used(&node.usage()?), ids([&slot]));
        node.delete(&uid)?;
        node.until_used(&[].into())?;
        node.until_health(&own, &slot, "Healthy")?;
    }
    Ok(())
}

#[test]
fn the_slot_of_a_pod_whose_device_is_gone_comes_to_nothing_when_the_pod_ends() -> Result<()> {
    let node = Node::with(1, &["foo"], &SOON)?;
    let own = resource(&node.instance("foo")?);
    let uid = node.run("p", &own, 1)?;
    node.echo(1, &[])?;
    node.home.instances(0)?;
    node.delete(&uid)?;
    within(Duration::from_mins(1), "no slot is held", || {
        let status = node.home.status()?;
        ensure!(crate::node::list(&status, "/kubelet/slots").is_empty());
        Ok(())
    })?;
    node.echo(1, &["foo"])?;
    node.until_listed(2)?;
    assert_eq!(used(&node.usage()?), [].into());
    node.run("q", &own, 1)?;
    Ok(())
}

#[test]
fn an_answer_the_kubelet_books_when_the_instance_is_gone_already_keeps_its_slot() -> Result<()> {
    let node = Node::with(1, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    let slot = format!("{name}-0");
    let own = resource(&name);
    for asked in [own.clone(), resource("echo")] {
        let before = node.kubelet.record().answers.len();
        node.kubelet.faults().hold_answers(true);
        let kubelet = (*node.kubelet).clone();
        let spec = PodSpec::asking("p", &asked, 1);
        let pod = node
            .kubelet
            .spawn(async move { kubelet.run_pod(&spec).await });
        node.until("the answer has come", |kubelet| {
            ensure!(kubelet.record().answers.len() > before);
            Ok(())
        })?;
        node.echo(1, &[])?;
        node.home.instances(0)?;
        // Longer than the agent takes to read the records after its answer.
        node.kubelet
            .wait(async { tokio::time::sleep(Duration::from_millis(1500)).await });
        node.kubelet.faults().hold_answers(false);
        let (uid, admitted) = node.kubelet.wait(pod)??;
        admitted?;
        let id = node.held(&uid, &asked);
        node.until_health(&asked, id.first().context("nothing")?, "Unhealthy")?;

        node.echo(1, &["foo"])?;
        node.until_used(&ids([&slot]))
            .with_context(|| format!("{asked}\n{}", node.home.log()))?;
        node.delete(&uid)?;
        node.until_used(&[].into())?;
        node.until_health(&own, &slot, "Healthy")?;
        node.kubelet
            .wait(node.kubelet.until_capacity("akri.sh/echo", 1, 1))?;
    }
    assert_eq!(node.kubelet.record().crashes, [""; 0]);
    Ok(())
}
