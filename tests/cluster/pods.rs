//! Tests of the cluster harness: pods run on its nodes and can be inspected; a node survives restarts.

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

#[test]
fn a_pod_runs_on_each_of_two_nodes() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let nodes = cluster.take_nodes(2)?;
    let space = cluster.namespace("pods")?;
    for node in &nodes {
        let pod = Pod::new(node.name(), &[Container::new("main")]).on(node);
        let running = space.run(&pod)?;
        assert_eq!(
            running.pointer("/spec/nodeName"),
            Some(&node.name().into()),
            "{running:#}"
        );
        let name = format!("HOSTNAME={}\n", node.name());
        space.wait_logs(node.name(), "main", &name)?;
        assert_eq!(space.exec(node.name(), "main", "cat /proc/1/comm")?, "sh\n");
    }
    Ok(())
}

#[test]
fn a_pod_keeps_running_while_its_kubelet_restarts() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let node = cluster.take_node()?;
    let space = cluster.namespace("restart")?;
    space.run(&Pod::new("stays", &[Container::new("main")]).on(&node))?;
    let started = "/status/containerStatuses/0/state/running/startedAt";
    let before = space.pod("stays")?;
    let kubelet = node.kubelet_pid()?;
    node.restart_kubelet()?;
    assert_ne!(node.kubelet_pid()?, kubelet);
    eventually("the new kubelet runs commands in it", || {
        space.exec("stays", "main", "true")
    })?;
    let after = space.wait_running("stays")?;
    assert!(before.pointer(started).is_some(), "{before:#}");
    assert_eq!(before.pointer(started), after.pointer(started));
    Ok(())
}

#[test]
fn a_node_comes_back_after_a_power_cut_and_starts_its_pods_again() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let node = cluster.take_node()?;
    let space = cluster.namespace("power")?;
    let pod = Pod::new("again", &[Container::new("main")]).on(&node);
    let before = space.run(&pod.with("restartPolicy", "Always".into()))?;
    node.run("touch", &["/run/before", "/var/lib/leafhost/before"])?;

    node.stop_kubelet(Signal::SIGKILL)?;
    node.stop_containers()?;
    node.empty_run()?;
    assert!(!node.path("/run/before").exists());
    assert!(node.path("/var/lib/leafhost/before").exists());
    node.start_kubelet()?;
    node.wait_ready()?;

    let id = "/status/containerStatuses/0/containerID";
    space.until("again", "its container is a new one", |pod| {
        let now = pod.pointer("/status/containerStatuses/0");
        let running = now.and_then(|now| now.pointer("/state/running"));
        ensure!(running.is_some(), "{now:?}");
        ensure!(
            pod.pointer(id) != before.pointer(id),
            "it is {:?}",
            pod.pointer(id)
        );
        Ok(())
    })?;
    space.exec("again", "main", "true")?;
    Ok(())
}

#[test]
fn a_failed_pod_ends_a_wait_at_once_with_the_cause() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let node = cluster.take_node()?;
    let space = cluster.namespace("ends")?;
    let fails = Container::new("main").script("exit 3");
    let error = space
        .create(&Pod::new("fails", &[fails]).on(&node))
        .and_then(|_| space.wait_phase("fails", "Succeeded"))
        .err()
        .context("a pod that failed has succeeded")?;
    let text = format!("{error:#}");
    assert!(
        text.contains("pod fails is Failed, not Succeeded")
            && text.contains("\"exitCode\": 3")
            && text.contains("kubelet of node-a"),
        "{text}"
    );
    Ok(())
}

#[test]
fn an_applied_object_is_read_changed_and_deleted() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let space = cluster.namespace("objects")?;
    let (api, maps) = (cluster.api(), space.collection("configmaps"));
    cluster.apply(&format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: map, namespace: {}}}\ndata: {{a: one, b: two}}\n",
        space.name()
    ))?;
    let map = format!("{maps}/map");
    let mut read = cluster.get(&map)?;
    assert_eq!(read.pointer("/data/a"), Some(&"one".into()));
    *read.pointer_mut("/data/a").context("no data")? = "changed".into();
    api.replace(&map, &read)?;
    let merged = api.merge(&map, &json!({"data": {"b": null}}))?;
    assert_eq!(merged.get("data"), Some(&json!({"a": "changed"})));
    api.delete(&map)?;
    let error = api.get(&map).err().context("it is still there")?;
    assert!(format!("{error:#}").contains("404"), "{error:#}");
    Ok(())
}
