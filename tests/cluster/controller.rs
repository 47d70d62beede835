//! Controller: release of what deleted nodes left behind.

use std::fs::File;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Namespace};
use leafhost_tests::program::leafhost;
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

/// Upper bound for the slots of a deleted node to be free.
const RELEASED: Duration = Duration::from_secs(10);

/// Controller that ends when this is dropped.
pub struct Controller(Child);

impl Controller {
    fn start(cluster: &Cluster, log: &tempfile::NamedTempFile) -> Result<Self> {
        Self::start_as(cluster.kubeconfig(), "kube-system", log)
    }

    /// Starts a controller with the rights of that kubeconfig and its Lease in that namespace.
    pub fn start_as(
        kubeconfig: &Path,
        namespace: &str,
        log: &tempfile::NamedTempFile,
    ) -> Result<Self> {
        // The controller reserves the names of other tests, too.
        Self::start_with(kubeconfig, namespace, log, &["--name-grace", "1s"])
    }

    /// Starts a controller with additional arguments.
    pub fn start_with(
        kubeconfig: &Path,
        namespace: &str,
        log: &tempfile::NamedTempFile,
        arguments: &[&str],
    ) -> Result<Self> {
        let log = File::options().append(true).open(log.path())?;
        let child = Command::new(leafhost()?)
            .args(["controller", "--lease-namespace", namespace])
            // The controller would create the brokers of other tests.
            .args(["--log-format", "text", "--no-brokers"])
            .args(arguments)
            .env("KUBECONFIG", kubeconfig)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the controller")?;
        Ok(Self(child))
    }

    /// Returns the process ID of the controller.
    pub fn pid(&self) -> u32 {
        self.0.id()
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Node object without a machine; removed on drop.
struct Ghost {
    cluster: &'static Cluster,
    name: &'static str,
}

impl Ghost {
    fn new(
        cluster: &'static Cluster,
        name: &'static str,
        ready: &str,
        since: &str,
    ) -> Result<Self> {
        let condition = json!({"type": "Ready", "status": ready, "reason": "Test", "message": "", "lastTransitionTime": since,
            "lastHeartbeatTime": since});
        let node = json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": {"conditions": [condition]}});
        cluster.api().create("/api/v1/nodes", &node)?;
        Ok(Self { cluster, name })
    }

    fn delete(&self) -> Result<Value> {
        self.cluster
            .api()
            .delete(&format!("/api/v1/nodes/{}", self.name))
    }
}

impl Drop for Ghost {
    fn drop(&mut self) {
        let _ = self.delete();
    }
}

fn instance(
    space: &Namespace<'_>,
    name: &str,
    shared: bool,
    nodes: &[&str],
    usage: [&str; 2],
) -> Value {
    let status: serde_json::Map<String, Value> = nodes
        .iter()
        .map(|node| ((*node).to_owned(), json!({"health": "Healthy"})))
        .collect();
    json!({
        "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": name, "namespace": space.name()},
        "spec": {"configurationName": "cams", "cdiName": format!("akri.sh/cams={name}"), "capacity": 2, "shared": shared,
            "nodes": nodes, "deviceUsage": {format!("{name}-0"): usage[0], format!("{name}-1"): usage[1]}},
        "status": {"nodes": status},
    })
}

#[test]
fn the_slots_of_nodes_that_are_gone_come_back_and_a_pod_that_may_run_keeps_its_own() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    cluster.define()?;
    let space = cluster.namespace("controller")?;
    let path = format!("/apis/akri.sh/v0/namespaces/{}/instances", space.name());
    let long_ago = "2020-01-01T00:00:00Z";
    let gone = Ghost::new(cluster, "ghost-gone", "True", long_ago)?;
    let away = Ghost::new(cluster, "ghost-away", "False", long_ago)?;
    let pod = json!({
        "metadata": {"name": "user"},
        "spec": {
            "nodeName": away.name, "terminationGracePeriodSeconds": 0, "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "none", "resources": {"limits": {"akri.sh/used": "1"}}}],
        },
    });
    cluster.api().create(&space.collection("pods"), &pod)?;
    let both = |name| {
        instance(
            &space,
            name,
            true,
            &["node-a", gone.name],
            ["C:cams-0:ghost-gone", "node-a"],
        )
    };
    for object in [
        both("shared"),
        instance(&space, "local", false, &[gone.name], [gone.name, ""]),
        instance(
            &space,
            "used",
            true,
            &["node-a", away.name],
            [away.name, "node-a"],
        ),
        instance(
            &space,
            "unused",
            true,
            &["node-a", away.name],
            [away.name, "node-a"],
        ),
        instance(&space, "own", false, &[away.name], [away.name, ""]),
        instance(&space, "left", true, &[], ["", ""]),
    ] {
        cluster.api().create(&path, &object)?;
    }
    let log = tempfile::NamedTempFile::new()?;
    let _controllers = [
        Controller::start(cluster, &log)?,
        Controller::start(cluster, &log)?,
    ];
    let read = |name: &str| cluster.get(&format!("{path}/{name}"));
    let is_released = |name: &str| -> Result<()> {
        let spec = read(name)?["spec"].clone();
        let usage = &spec["deviceUsage"];
        ensure!(spec["nodes"] == json!(["node-a"]), "{spec:#}");
        ensure!(
            usage[format!("{name}-0")] == "" && usage[format!("{name}-1")] == "node-a",
            "{spec:#}"
        );
        Ok(())
    };
    let shown = || std::fs::read_to_string(log.path()).unwrap_or_default();
    eventually("what a node that is away does not use is free", || {
        is_released("unused")?;
        ensure!(read("left").is_err(), "the Instance without nodes is there");
        Ok(())
    })
    .with_context(shown)?;
    for (name, node) in [
        ("shared", gone.name),
        ("used", away.name),
        ("local", gone.name),
        ("own", away.name),
    ] {
        let instance = read(name)?;
        let usage = instance["spec"]["deviceUsage"][format!("{name}-0")].as_str();
        ensure!(
            usage.is_some_and(|usage| usage.ends_with(node)),
            "{instance:#}\n{}",
            shown()
        );
    }

    gone.delete()?;
    within(RELEASED, "the slots of the deleted node are free", || {
        is_released("shared")?;
        ensure!(read("local").is_err(), "its local Instance is there");
        Ok(())
    })
    .with_context(shown)?;
    ensure!(
        is_released("used").is_err(),
        "a pod may use it\n{}",
        shown()
    );

    let user = format!("{}/user", space.collection("pods"));
    cluster
        .api()
        .delete(&format!("{user}?gracePeriodSeconds=0"))?;
    eventually("the slot of the pod that has ended is free", || {
        is_released("used")
    })
    .with_context(shown)?;
    read("own")?;
    let lease = cluster
        .get("/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/leafhost-controller")?;
    let holder = lease["spec"]["holderIdentity"]
        .as_str()
        .context("no holder")?;
    let acts = shown()
        .lines()
        .filter(|line| line.contains("is_leader=true"))
        .count();
    ensure!(
        acts == 1,
        "{acts} lead, {holder} holds the Lease:\n{}",
        shown()
    );
    Ok(())
}
