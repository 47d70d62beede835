//! Device health in the node's capacity and in the pods' status.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::wait::within;
use serde_json::Value;

use crate::device::{Site, variable};

/// Prepares an agent with the mock-gpu handler; does not start it.
fn gpus(name: &str, details: &str) -> Result<Option<Site>> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(None);
    };
    let site = Site::on(cluster, cluster.take_node()?)?;
    site.home.add_handler("mock-gpu")?;
    site.configure_for(name, "mock-gpu", 1, details)?;
    Ok(Some(site))
}

/// Waits until there are `count` Instances and returns the resource of this GPU's.
fn resource(site: &Site, count: usize, index: &str) -> Result<String> {
    let instances = site.home.instances(count)?;
    let gpu = instances.iter().find(|instance| {
        let found = instance.pointer("/spec/brokerProperties/MOCK_GPU_INDEX");
        found.is_some_and(|found| found == index)
    });
    let name = gpu.and_then(|gpu| gpu.pointer("/metadata/name")?.as_str());
    Ok(format!("akri.sh/{}", name.context("no such GPU")?))
}

#[test]
fn a_node_counts_the_healthy_devices_within_thirty_seconds() -> Result<()> {
    let Some(mut site) = gpus("count", "{count: 4, unhealthy: [1]}")? else {
        return Ok(());
    };
    site.home.start(&[])?;
    let expected = [
        ("akri.sh/count".to_owned(), (3, 3)),
        (resource(&site, 4, "0")?, (1, 1)),
        (resource(&site, 4, "1")?, (1, 0)),
    ];
    within(Duration::from_secs(30), "the node counts them", || {
        for (resource, amounts) in &expected {
            let found = site.amounts(resource)?;
            ensure!(found == *amounts, "{resource} is {found:?}");
        }
        Ok(())
    })
    .with_context(|| site.home.log())
}

#[test]
fn a_pod_whose_device_becomes_unhealthy_keeps_running_and_its_end_changes_nothing() -> Result<()> {
    let Some(mut site) = gpus("ill", "{count: 2}")? else {
        return Ok(());
    };
    let space = site.namespace("ill")?;
    site.home.start(&[])?;
    let gpu = resource(&site, 2, "1")?;
    site.until_amounts(&gpu, 1, 1)?;
    site.until_amounts("akri.sh/ill", 2, 2)?;
    let started = "/status/containerStatuses/0/state/running/startedAt";
    let pod = Pod::new("pod", &[Container::new("main").device(&gpu, 1)]);
    let before = space.run(&pod.on(site.node))?;

    site.configure_for("ill", "mock-gpu", 1, "{count: 2, unhealthy: [1]}")?;
    site.until_amounts(&gpu, 1, 0)?;
    site.node.wait_allocatable("akri.sh/ill", 1)?;
    site.configure_for("ill", "mock-gpu", 1, "{count: 2}")?;
    site.until_amounts(&gpu, 1, 1)?;
    site.configure_for("ill", "mock-gpu", 1, "{count: 2, unhealthy: [1]}")?;
    site.until_amounts(&gpu, 1, 0)?;
    let after = space.wait_running("pod")?;
    ensure!(
        before.pointer(started) == after.pointer(started),
        "{after:#}"
    );
    site.until_held_by(&space, &["pod"])?;

    space.delete("pod")?;
    site.until_held_by(&space, &[])?;
    assert_eq!(site.amounts(&gpu)?, (1, 0));
    site.configure_for("ill", "mock-gpu", 1, "{count: 2}")?;
    site.until_amounts(&gpu, 1, 1)?;
    site.node.wait_allocatable("akri.sh/ill", 2)
}

#[test]
fn a_pods_status_shows_the_health_of_its_device() -> Result<()> {
    let Some(mut site) = gpus("shows", "{count: 2}")? else {
        return Ok(());
    };
    let space = site.namespace("shows")?;
    site.home.start(&[])?;
    site.until_amounts("akri.sh/shows", 2, 2)?;
    let main = Container::new("main").device("akri.sh/shows", 1);
    space.run(&Pod::new("pod", &[main]).on(site.node))?;
    let log = space.wait_logs("pod", "main", "MOCK_GPU_INDEX=")?;
    let index = variable(&log, "MOCK_GPU_INDEX").context("no index")?;
    let is = |health: &str| {
        space.until("pod", &format!("its device is {health}"), |pod| {
            let all = pod.pointer("/status/containerStatuses/0/allocatedResourcesStatus");
            let one = all.and_then(|all| all.get(0));
            let text = |pointer| one.and_then(|one| one.pointer(pointer)?.as_str());
            ensure!(
                text("/name") == Some("akri.sh/shows")
                    && text("/resources/0/health") == Some(health),
                "{:#}",
                all.unwrap_or(&Value::Null)
            );
            Ok(())
        })
    };
    is("Healthy")?;
    let unhealthy = format!("{{count: 2, unhealthy: [{index}]}}");
    site.configure_for("shows", "mock-gpu", 1, &unhealthy)?;
    is("Unhealthy")?;
    site.configure_for("shows", "mock-gpu", 1, "{count: 2}")?;
    is("Healthy")
}

#[test]
fn a_device_that_returns_still_belongs_to_its_pod() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut site = Site::new(cluster)?;
    let space = site.namespace("back")?;
    site.configure("back", 2, &["one"])?;
    site.home.start(&[])?;
    let resource = site.only_resource(2)?;
    let pod = |name: &str, resource: &str| {
        let main = Container::new("main").device(resource, 1);
        Pod::new(name, &[main]).on(site.node)
    };
    site.until_amounts("akri.sh/back", 1, 1)?;
    space.run(&pod("a", &resource))?;
    space.run(&pod("b", "akri.sh/back"))?;
    let held = site.until_held_by(&space, &["a", "b"])?;
    let uid = |site: &Site| -> Result<Option<Value>> {
        let status = site.home.status()?;
        Ok(status.pointer("/instances/0/metadata/uid").cloned())
    };
    let before = uid(&site)?;

    site.configure("back", 2, &[])?;
    site.home.instances(0)?;
    site.node.wait_allocatable(&resource, 0)?;
    site.node.wait_allocatable("akri.sh/back", 0)?;
    for name in ["a", "b"] {
        space.wait_running(name)?;
    }
    site.configure("back", 2, &["one"])?;
    site.home.instances(1)?;
    assert_ne!(uid(&site)?, before);
    assert_eq!(site.until_held_by(&space, &["a", "b"])?, held);
    // Both devices count and are in use: none is free for a third pod.
    site.node.wait_allocatable(&resource, 1)?;
    space.create(&pod("c", &resource))?;
    space.wait_unschedulable("c")?;
    space.delete("b")?;
    space.wait_running("c")?;
    let now = site.until_held_by(&space, &["a", "c"])?;
    assert!(held.keys().all(|slot| now.contains_key(slot)), "{now:?}");
    Ok(())
}
