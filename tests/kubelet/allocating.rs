//! Pods that request two resources, and pods that are refused after a partial allocation.

use anyhow::{Context, Result, ensure};
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::{Kind, PodSpec};
use tonic::Code;

use crate::node::{Node, SOON, configuration, resource, used};

#[test]
fn an_app_container_gets_what_its_init_container_got_and_nobody_else_does() -> Result<()> {
    let node = Node::with(2, &["foo"], &SOON)?;
    let own = resource(&node.instance("foo")?);
    for name in [own.as_str(), "akri.sh/echo"] {
        let asking = [(name, 1)];
        let spec =
            PodSpec::new("p")
                .with(Kind::Init, "init", &asking)
                .with(Kind::App, "main", &asking);
        let (uid, admitted) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
        admitted?;
        let of = |container| node.kubelet.held(&uid, container, name);
        assert_eq!(of("init"), of("main"));
        let answer = |container| node.kubelet.answer(&uid, container, name);
        let (init, main) = (
            answer("init").context("none")?,
            answer("main").context("none")?,
        );
        assert_eq!(init, main);
        assert_eq!(main.envs["DEBUG_ECHO_DESCRIPTION"], "foo");
        assert_eq!(used(&node.usage()?).len(), 1, "{name}");
        node.delete(&uid)?;
        node.until_used(&[].into())?;
    }
    Ok(())
}

#[test]
fn a_held_id_is_refused_to_others_with_the_holders_name() -> Result<()> {
    let node = Node::with(1, &["foo"], &[])?;
    let own = resource(&node.instance("foo")?);
    let uid = node.run("holder", &own, 1)?;
    let slot = format!("{}-0", node.instance("foo")?);
    node.home.until("it is seen who has it", |status| {
        status.to_string().contains(r#""holder":"default/holder""#)
    })?;
    let Err(status) = node.ask(&own, &[vec![slot.clone()]])? else {
        anyhow::bail!("{slot} was given twice");
    };
    assert_eq!(status.code(), Code::ResourceExhausted);
    ensure!(status.message().contains("default/holder"), "{status}");
    assert_eq!(node.held(&uid, &own), [slot.clone()].into());
    assert_eq!(used(&node.usage()?), [slot].into());
    Ok(())
}

#[test]
fn a_pod_whose_second_container_is_refused_leaves_nothing_behind() -> Result<()> {
    let mut node = Node::new()?;
    node.echo(1, &["foo"])?;
    node.home.write(
        "configurations/more.yaml",
        configuration("more", 1, &["bar"]),
    )?;
    node.home.start(&SOON)?;
    node.until_listed(4)?;
    let (own, other) = (
        resource(&node.instance("foo")?),
        resource(&node.instance("bar")?),
    );
    for (first, second) in [
        (own.as_str(), "akri.sh/echo"),
        ("akri.sh/more", other.as_str()),
    ] {
        let spec = PodSpec::new("p").with(Kind::App, "a", &[(first, 1)]).with(
            Kind::App,
            "b",
            &[(second, 1)],
        );
        let (uid, admitted) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
        // The second resource must not give the slot that the first one has.
        ensure!(
            matches!(
                admitted,
                Err(Refusal::TooFew { .. } | Refusal::NoneHealthy(_) | Refusal::Plugin { .. })
            ),
            "{admitted:?}"
        );
        node.until_used(&[].into())?;
        // The slot is offered again, even while the failed pod still exists.
        node.until("both are free", |kubelet| {
            for name in [first, second] {
                let now = kubelet.capacity(name);
                ensure!(matches!(now, Some((_, 1))), "{name}: {now:?}");
            }
            Ok(())
        })?;
        let next = node.run("q", second, 1)?;
        node.delete(&uid)?;
        node.delete(&next)?;
        node.until_used(&[].into())?;
    }
    Ok(())
}

#[test]
fn a_pod_that_asks_for_any_device_and_for_a_certain_one_gets_both() -> Result<()> {
    let node = Node::with(1, &["foo", "bar"], &SOON)?;
    for named in ["foo", "bar"] {
        let own = resource(&node.instance(named)?);
        let spec = PodSpec::new("p")
            .with(Kind::App, "any", &[("akri.sh/echo", 1)])
            .with(Kind::App, "named", &[(&own, 1)]);
        let mut refusals = Vec::new();
        loop {
            let (uid, admitted) = node.kubelet.wait(node.kubelet.run_pod(&spec))?;
            let Err(refusal) = admitted else {
                assert_eq!(used(&node.usage()?).len(), 2);
                node.delete(&uid)?;
                break;
            };
            refusals.push(refusal);
            // The kubelet may have allocated the named slot through the Configuration's resource, but only once.
            ensure!(refusals.len() < 2, "{named}: {refusals:?}");
            node.delete(&uid)?;
            node.until_used(&[].into())?;
            node.kubelet
                .wait(node.kubelet.until_capacity("akri.sh/echo", 2, 2))?;
            node.kubelet.wait(node.kubelet.until_capacity(&own, 1, 1))?;
        }
        node.until_used(&[].into())?;
        node.kubelet
            .wait(node.kubelet.until_capacity("akri.sh/echo", 2, 2))?;
        node.kubelet.wait(node.kubelet.until_capacity(&own, 1, 1))?;
    }
    Ok(())
}

#[test]
fn a_container_gets_different_devices_and_all_that_belongs_to_them() -> Result<()> {
    let node = Node::with(3, &["a", "b", "c"], &[])?;
    let uid = node.run("p", "akri.sh/echo", 3)?;
    let answer = node.kubelet.answer(&uid, "main", "akri.sh/echo");
    let envs = answer.context("no answer")?.envs;
    let found: std::collections::BTreeSet<_> = envs
        .iter()
        .filter(|(name, _)| name.starts_with("DEBUG_ECHO_DESCRIPTION_"))
        .map(|(_, value)| value.as_str())
        .collect();
    assert_eq!(found, ["a", "b", "c"].into());
    let used = used(&node.usage()?);
    let instances: std::collections::BTreeSet<_> = used
        .iter()
        .filter_map(|slot| slot.rsplit_once('-'))
        .map(|(instance, _)| instance)
        .collect();
    assert_eq!(instances.len(), 3, "{used:?}");
    Ok(())
}

#[test]
fn capacity_changes_live_and_used_slots_beyond_it_stay_until_they_are_free() -> Result<()> {
    let node = Node::with(1, &["foo"], &SOON)?;
    let name = node.instance("foo")?;
    let own = resource(&name);
    let first = node.run("first", &own, 1)?;
    node.echo(5, &["foo"])?;
    node.kubelet.wait(node.kubelet.until_capacity(&own, 5, 5))?;
    let rest = node.run("rest", &own, 4)?;
    assert_eq!(used(&node.usage()?).len(), 5);

    node.echo(2, &["foo"])?;
    // All five slots are held: they stay listed, healthy for the pods that have them.
    node.home.until("the capacity is 2", |status| {
        status.pointer("/instances/0/spec/capacity") == Some(&2.into())
    })?;
    assert_eq!(used(&node.usage()?).len(), 5);
    let (_, refused) = node.kubelet.wait(node.kubelet.run_pod(&PodSpec::asking(
        "more",
        "akri.sh/echo",
        1,
    )))?;
    ensure!(refused.is_err(), "a sixth was given");
    node.delete(&rest)?;
    node.until_used(&node.held(&first, &own))?;
    node.until("one more may be had", |kubelet| {
        let healthy = kubelet.devices(&own);
        let healthy = healthy.values().filter(|one| one.health == "Healthy");
        let count = healthy.count();
        ensure!(count == 2, "{count}");
        Ok(())
    })?;
    node.run("second", &own, 1)?;
    assert_eq!(used(&node.usage()?).len(), 2);
    Ok(())
}
