//! Restarts of the agent, the kubelet or the node: pods keep running and resources are offered again.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Namespace, Pod};
use leafhost_tests::random;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::device::{Site, resources};
use crate::disturbances::Paused;

/// Starts an agent with one device of two slots, one of which pod `a` has; also returns the Instance's resource.
fn begin(name: &str) -> Result<Option<(Site, Namespace<'static>, String)>> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(None);
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace(name)?;
    site.configure(name, 2, &["one"])?;
    site.home.start(&[])?;
    let resource = site.only_resource(2)?;
    space.run(&pod("a", &site, &resource))?;
    site.until_held_by(&space, &["a"])?;
    Ok(Some((site, space, resource)))
}

fn pod(name: &str, site: &Site, resource: &str) -> Pod {
    let main = Container::new("main").device(resource, 1);
    Pod::new(name, &[main]).on(site.node)
}

/// Waits until the kubelet lists all resources and returns the number of registrations of each.
fn registrations(site: &Site) -> Result<BTreeMap<String, u64>> {
    let status = site.until_listed()?;
    let text = |one: &Value| Some(one.get("name")?.as_str()?.to_owned());
    Ok(resources(&status)
        .iter()
        .filter_map(|one| Some((text(one)?, one.get("registrations")?.as_u64()?)))
        .collect())
}

#[test]
fn pods_keep_their_slots_when_the_agent_restarts_alone_and_with_the_kubelet() -> Result<()> {
    let Some((mut site, space, resource)) = begin("comes")? else {
        return Ok(());
    };
    let given = (site.given()?, space.container("a")?);
    let held = site.until_held_by(&space, &["a"])?;
    let restarts = [
        (Signal::SIGTERM, false),
        (Signal::SIGKILL, false),
        (Signal::SIGKILL, true),
    ];
    for (signal, is_kubelet) in restarts {
        site.home.stop(signal)?;
        if is_kubelet {
            site.node.stop_kubelet(Signal::SIGKILL)?;
            site.node.start_kubelet()?;
        } else {
            site.node.wait_allocatable(&resource, 0)?;
            assert_eq!(site.given()?, given.0);
        }
        site.home.start(&[])?;
        if is_kubelet {
            site.node.wait_ready()?;
        }
        site.until_amounts(&resource, 2, 2)?;
        site.until_amounts("akri.sh/comes", 1, 1)?;
        assert_eq!(site.until_held_by(&space, &["a"])?, held);
        assert_eq!((site.given()?, space.container("a")?), given);
    }
    space.run(&pod("b", &site, &resource))?;
    site.until_held_by(&space, &["a", "b"])?;
    Ok(())
}

#[test]
fn a_restarted_kubelet_is_served_again_and_pods_keep_their_slots() -> Result<()> {
    restarts(3)
}

/// Restarts the kubelet `SOAK_ROUNDS` times.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_restarted_kubelets() -> Result<()> {
    restarts(random::rounds(100))
}

fn restarts(rounds: u64) -> Result<()> {
    let Some((site, space, resource)) = begin("kubelet")? else {
        return Ok(());
    };
    space.run(&pod("b", &site, "akri.sh/kubelet"))?;
    let held = site.until_held_by(&space, &["a", "b"])?;
    let given = site.given()?;
    let before = [space.container("a")?, space.container("b")?];
    let mut registered = registrations(&site)?;
    for round in 0..rounds {
        site.node.restart_kubelet()?;
        site.node.wait_allocatable(&resource, 1)?;
        site.node.wait_allocatable("akri.sh/kubelet", 1)?;
        let now = registrations(&site)?;
        for (name, count) in &now {
            let earlier = registered.get(name).copied().unwrap_or_default();
            let times = count.saturating_sub(earlier);
            ensure!(
                (1..=2).contains(&times),
                "restart {round}: {name} was registered {times} times\n{}",
                site.home.log()
            );
        }
        ensure!(now.len() == registered.len(), "restart {round}: {now:?}");
        registered = now;
        assert_eq!(site.until_held_by(&space, &["a", "b"])?, held);
        assert_eq!(site.given()?, given);
        assert_eq!([space.container("a")?, space.container("b")?], before);
    }
    space.delete("a")?;
    site.until_held_by(&space, &["b"])?;
    space.run(&pod("c", &site, &resource))?;
    site.until_held_by(&space, &["b", "c"])?;
    Ok(())
}

/// Restarts the agent while the kubelet is stopped: the kubelet learns at the same moment that the plugin has ended and that it is back.
#[test]
fn an_agent_restarted_while_the_kubelet_stands_still_is_served_by_it_again() -> Result<()> {
    let Some((mut site, space, resource)) = begin("still")? else {
        return Ok(());
    };
    let held = site.until_held_by(&space, &["a"])?;
    let (_, name) = resource.split_once('/').context("no name")?;
    let socket = site.node.device_plugins();
    let socket = socket.join(format!("leafhost-{name}.sock"));
    for round in 0..6 {
        let before = fs::metadata(&socket)?;
        let still = Paused::new(site.node)?;
        site.home.stop(Signal::SIGKILL)?;
        site.home.start(&[])?;
        eventually("the agent serves the resource", || {
            let now = fs::metadata(&socket)?;
            ensure!(now.ctime_nsec() != before.ctime_nsec(), "not yet");
            Ok(())
        })?;
        drop(still);
        site.until_listed()
            .with_context(|| format!("round {round}"))?;
        site.until_amounts(&resource, 2, 2)?;
        assert_eq!(site.until_held_by(&space, &["a"])?, held);
    }
    // The kubelet also sees the end of the last plugin.
    site.home.stop(Signal::SIGKILL)?;
    site.node.wait_allocatable(&resource, 0)?;
    site.home.start(&[])?;
    site.until_amounts(&resource, 2, 2)?;
    space.run(&pod("b", &site, &resource))?;
    site.until_held_by(&space, &["a", "b"])?;
    Ok(())
}

#[test]
fn a_pod_deleted_while_the_kubelet_is_down_leaves_no_slot_in_use() -> Result<()> {
    let Some((site, space, resource)) = begin("down")? else {
        return Ok(());
    };
    site.node.stop_kubelet(Signal::SIGTERM)?;
    space.delete_now("a")?;
    site.node.start_kubelet()?;
    site.node.wait_ready()?;
    site.until_held_by(&space, &[])?;
    site.until_amounts(&resource, 2, 2)?;
    for name in ["b", "c"] {
        space.create(&pod(name, &site, &resource))?;
    }
    for name in ["b", "c"] {
        space.wait_running(name)?;
    }
    site.until_held_by(&space, &["b", "c"])?;
    Ok(())
}

#[test]
fn after_a_power_cut_old_pods_fail_and_new_ones_work_once_the_agent_is_back() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("cut")?;
    site.configure("cut", 2, &["one"])?;
    site.home.start(&["--slot-grace", "5s"])?;
    let resource = site.only_resource(2)?;
    let old = pod("old", &site, &resource).with("restartPolicy", "Always".into());
    space.run(&old)?;
    site.until_held_by(&space, &["old"])?;

    site.node.stop_kubelet(Signal::SIGKILL)?;
    site.home.stop(Signal::SIGKILL)?;
    site.node.stop_containers()?;
    site.node.empty_run()?;
    site.node.start_kubelet()?;
    site.node.wait_ready()?;
    // Without the agent the kubelet admits no pod with a device, and the scheduler binds no new one.
    let failed = space.until("old", "the kubelet rejects it", |pod| {
        let phase = pod.pointer("/status/phase");
        ensure!(phase.is_some_and(|phase| phase == "Failed"), "{pod:#}");
        Ok(pod.clone())
    })?;
    assert_eq!(
        failed.pointer("/status/reason"),
        Some(&"UnexpectedAdmissionError".into())
    );
    space.create(&pod("new", &site, &resource))?;
    space.wait_unschedulable("new")?;
    site.home.start(&["--slot-grace", "5s"])?;
    space.wait_running("new")?;
    site.until_held_by(&space, &["new"])?;
    site.until_amounts(&resource, 2, 2)
}
