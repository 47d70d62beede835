//! Devices during the lifetime of a pod's containers: init containers, sidecars, restarts.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::wait;

use crate::device::Site;

#[test]
fn an_init_container_keeps_its_slot_for_longer_than_the_grace() -> Result<()> {
    init_container(Duration::from_secs(20))
}

/// Waits longer than the slowest periodic check of kubelet and agent.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_an_init_container_keeps_its_slot() -> Result<()> {
    init_container(Duration::from_mins(6))
}

fn init_container(length: Duration) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("init")?;
    site.configure("init", 1, &["one"])?;
    site.home.start(&["--slot-grace", "5s"])?;
    let resource = site.only_resource(1)?;
    let init = Container::new("init").script(&format!("env; sleep {}", length.as_secs()));
    let main = Container::new("main").device(&resource, 1);
    let pod = Pod::new("pod", &[main]).init(&[init.device(&resource, 1)]);
    space.create(&pod.on(site.node))?;
    space.wait_logs("pod", "init", "DEBUG_ECHO_DESCRIPTION=one\n")?;
    site.home.until("the init container is seen", |status| {
        status.pointer("/kubelet/slots/0/holder").is_some()
    })?;
    let limit = length.saturating_add(wait::TIMEOUT);
    wait::within(limit, "the main container prints its device", || {
        let logs = space.logs("pod", "main")?;
        ensure!(logs.contains("DEBUG_ECHO_DESCRIPTION=one\n"), "{logs}");
        Ok(())
    })?;
    site.until_held_by(&space, &["pod"])?;
    let log = site.home.log();
    ensure!(!log.contains("slot is free again"), "{log}");
    space.delete("pod")?;
    site.until_held_by(&space, &[])?;
    Ok(())
}

#[test]
fn an_init_container_shares_its_device_with_a_sidecar_and_not_with_the_others() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("sidecar")?;
    site.configure("sidecar", 3, &["one"])?;
    site.home.start(&[])?;
    let resource = site.only_resource(3)?;
    let with = |name| Container::new(name).device(&resource, 1);
    let pod = Pod::new("pod", &[with("main")]);
    let init = [with("init").script("env"), with("sidecar").sidecar()];
    space.run(&pod.init(&init).on(site.node))?;
    site.until_held_by(&space, &["pod"])?;
    let given = site.given()?;
    let ids: BTreeMap<&str, &str> = given
        .iter()
        .map(|(_, container, _, id)| (&**container, &**id))
        .collect();
    ensure!(
        ids.len() == 2
            && given.len() == 2
            && ids.contains_key("main")
            && ids.get("main") != ids.get("sidecar"),
        "{given:?}"
    );
    // The sidecar takes over the init container's slot, so there is no third.
    let slots = site.home.status()?;
    let slots = slots
        .pointer("/kubelet/slots")
        .and_then(|all| all.as_array());
    assert_eq!(slots.context("no slots")?.len(), 2);
    Ok(())
}

#[test]
fn a_container_that_restarts_keeps_its_device_and_the_next_pod_gets_another() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("again")?;
    site.configure("again", 1, &["one", "another"])?;
    site.home.start(&["--slot-grace", "5s"])?;
    site.until_amounts("akri.sh/again", 2, 2)?;
    let main = Container::new("main").device("akri.sh/again", 1);
    let pod = |name| {
        let pod = Pod::new(name, std::slice::from_ref(&main)).on(site.node);
        pod.with("restartPolicy", "Always".into())
    };
    space.run(&pod("a"))?;
    let variable = "DEBUG_ECHO_DESCRIPTION=";
    let first = space.wait_logs("a", "main", variable)?;
    let held = site.until_held_by(&space, &["a"])?;
    let given = site.given()?;
    // The container may end before the command reports success.
    drop(space.exec("a", "main", "kill 1"));
    space.until("a", "it runs again", |pod| {
        let status = pod.pointer("/status/containerStatuses/0");
        let status = status.context("no status")?;
        ensure!(
            status.get("restartCount") == Some(&1.into())
                && status.pointer("/state/running").is_some(),
            "{status:#}"
        );
        Ok(())
    })?;
    let of = |log: &str| crate::device::variable(log, "DEBUG_ECHO_DESCRIPTION");
    assert_eq!(of(&space.wait_logs("a", "main", variable)?), of(&first));
    assert_eq!(site.given()?, given);
    space.run(&pod("b"))?;
    assert_ne!(of(&space.wait_logs("b", "main", variable)?), of(&first));
    let both = site.until_held_by(&space, &["a", "b"])?;
    assert!(held.iter().all(|(slot, pod)| both.get(slot) == Some(pod)));
    Ok(())
}
