//! Agent that stops and starts while pods have slots.

use anyhow::{Context, Result, ensure};
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::program;
use nix::sys::signal::Signal;

use crate::node::{Node, SOON, ids, resource, usage_of, used};

/// Returns the first list of a resource after `before` lists.
fn first_list(node: &Node, resource: &str, before: usize) -> Result<Vec<(String, String)>> {
    let lists = node.kubelet.record().lists;
    let lists = lists.iter().skip(before);
    let first = lists.into_iter().find(|list| list.resource == resource);
    let devices = first.context("no list")?.devices.iter();
    Ok(devices
        .map(|device| (device.id.clone(), device.health.clone()))
        .collect())
}

#[test]
fn held_ids_are_in_the_first_list_after_a_restart_and_their_pods_keep_them() -> Result<()> {
    let mut node = Node::with(2, &["foo", "bar"], &SOON)?;
    let own = resource(&node.instance("foo")?);
    let both = [own.as_str(), "akri.sh/echo"];
    let uids = [node.run("p", both[0], 1)?, node.run("q", both[1], 2)?];
    let usage = node.usage()?;
    assert_eq!(used(&usage).len(), 3);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let before = node.kubelet.record().lists.len();
        node.home.stop(signal)?;
        node.until("the lists have ended", |kubelet| {
            ensure!(both.iter().all(|name| kubelet.streams(name) == 0));
            Ok(())
        })?;
        node.home.start(&SOON)?;
        node.until_listed(3)?;
        node.until("new lists", |_| {
            both.iter()
                .try_for_each(|name| first_list(&node, name, before).map(drop))
        })?;
        for (uid, name) in uids.iter().zip(both) {
            let first = first_list(&node, name, before)?;
            for id in node.held(uid, name) {
                let healthy = (id.clone(), "Healthy".to_owned());
                ensure!(first.contains(&healthy), "{id} is not healthy in {first:?}");
            }
        }
        assert_eq!(node.usage()?, usage, "after {signal}");
        // A restarted container gets the devices it had.
        for (uid, name) in uids.iter().zip(both) {
            let had = node.held(uid, name);
            node.kubelet.end_container(uid, "main");
            node.kubelet
                .wait(node.kubelet.start_container(uid, "main"))?;
            assert_eq!(node.held(uid, name), had);
        }
    }
    // The slots of pods that end while no agent runs are freed soon after it runs again.
    node.home.stop(Signal::SIGKILL)?;
    for uid in &uids {
        node.delete(uid)?;
    }
    node.home.start(&SOON)?;
    node.until_used(&[].into())
}

#[test]
fn a_lost_state_folder_gives_no_pods_slot_away() -> Result<()> {
    let mut node = Node::with(1, &["foo", "bar"], &SOON)?;
    let (foo, bar) = (node.instance("foo")?, node.instance("bar")?);
    let first = node.run("p", &resource(&foo), 1)?;
    let second = node.run("q", "akri.sh/echo", 1)?;
    let usage = node.usage()?;
    assert_eq!(
        used(&usage),
        ids([format!("{foo}-0").as_str(), format!("{bar}-0").as_str()])
    );
    node.home.stop(Signal::SIGTERM)?;
    std::fs::remove_dir_all(node.home.path().join("state/instances"))?;
    node.home.start(&SOON)?;
    // The annotation that the kubelet keeps names the slot behind the virtual device.
    node.home.until("both are claimed as before", |status| {
        usage_of(status) == usage
    })?;
    node.until_listed(3)?;
    for name in [resource(&foo), resource(&bar), resource("echo")] {
        let spec = PodSpec::asking("thief", &name, 1);
        let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
        ensure!(refused.is_err(), "{name} was given away");
    }
    node.delete(&first)?;
    node.until_used(&ids([format!("{bar}-0").as_str()]))?;
    node.delete(&second)?;
    node.until_used(&[].into())
}

#[test]
fn an_instance_that_is_made_anew_after_a_restart_begins_with_its_pods_slots() -> Result<()> {
    let mut node = Node::with(1, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    let slot = format!("{name}-0");
    for asked in [resource(&name), resource("echo")] {
        let uid = node.run("p", &asked, 1)?;
        let usage = node.usage()?;
        node.home.until("it is seen who has it", |status| {
            status.to_string().contains(r#""holder":"default/p""#)
        })?;
        node.echo(1, &[])?;
        node.home.instances(0)?;
        node.home.stop(Signal::SIGKILL)?;
        node.home.start(&SOON)?;
        node.home.until("the pod's slot is known", |status| {
            let slots = status.pointer("/kubelet/slots");
            slots.is_some_and(|slots| slots.to_string().contains(&slot))
        })?;
        node.echo(1, &["foo"])?;
        node.home.until("it is claimed as before", |status| {
            usage_of(status) == usage
        })?;
        node.delete(&uid)?;
        node.until_used(&[].into())?;
        node.until_health(&resource(&name), &slot, "Healthy")?;
    }
    Ok(())
}

#[test]
fn until_a_handler_is_compiled_again_no_free_slot_is_offered_and_held_ones_stay() -> Result<()> {
    let mut node = Node::with(3, &["foo"], &[])?;
    let name = node.instance("foo")?;
    let own = resource(&name);
    let uids = [node.run("p", &own, 1)?, node.run("q", &own, 1)?];
    let held = node.held(&uids[0], &own);
    let (held, ended) = (held.first(), node.held(&uids[1], &own));
    let (held, ended) = (held.context("none")?, ended.first().context("none")?);
    node.home.stop(Signal::SIGKILL)?;
    // One pod ends while no agent runs, so its slot is claimed for this node by no pod.
    node.delete(&uids[1])?;
    std::fs::remove_dir_all(node.home.path().join("state/native"))?;
    let compiler = node.home.path().join("compiler");
    let go = node.home.path().join("go");
    let real = program::leafhost()?.with_file_name("leafhost-compile");
    let script = format!(
        "until [ -e {} ]; do sleep 0.1; done\nexec {} \"$@\"",
        go.display(),
        real.display()
    );
    program::script(&compiler, &script)?;
    let compiler = compiler.to_str().context("no text")?;
    node.home.start(&["--compiler", compiler])?;
    node.until_health(&own, held, "Healthy")?;
    node.until_health(&own, ended, "Unhealthy")?;
    for asked in [own.as_str(), "akri.sh/echo"] {
        // A scheduler would leave such a pod Pending.
        let spec = PodSpec::asking("new", asked, 1);
        let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
        ensure!(
            matches!(
                refused,
                Err(Refusal::TooFew { .. } | Refusal::NoneHealthy(_) | Refusal::Unregistered(_))
            ),
            "{asked}: {refused:?}"
        );
    }
    std::fs::write(&go, "")?;
    node.until_health(&own, ended, "Healthy")?;
    node.run("new", &own, 1)?;
    Ok(())
}
