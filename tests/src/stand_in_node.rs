//! Node of a cluster without a machine: a Node object, the stand-in of a kubelet, and the agent that serves it.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Handle;

use crate::agent::Home;
use crate::cluster::{Api, Cluster};
use crate::kubelet::Kubelet;
use crate::program;
use crate::wait::eventually;

/// In memory, because the stand-in syncs its checkpoint at each change.
const FOLDERS: &str = "/dev/shm";
const NODES: &str = "/api/v1/nodes";

/// Stand-in node. Dropping it deletes its Node object.
pub struct StandInNode {
    /// Agent and its folder.
    pub home: Home,
    /// Kubelet that the agent serves.
    pub kubelet: Kubelet,
    name: String,
    api: Api,
    heartbeats: AtomicU32,
    _folder: TempDir,
}

impl StandInNode {
    /// Creates a node whose kubelet runs on `runtime`. Its agent has the handler debug-echo and is not started. Not from async code.
    pub fn new(cluster: &Cluster, runtime: &Handle, name: &str) -> Result<Self> {
        cluster.define()?;
        let api = cluster.api().clone();
        api.create(NODES, &json!({"metadata": {"name": name}}))?;
        let folder = tempfile::Builder::new().tempdir_in(FOLDERS)?;
        let mut node = Self {
            home: Home::new()?,
            kubelet: Kubelet::new(folder.path()),
            name: name.to_owned(),
            api,
            heartbeats: AtomicU32::default(),
            _folder: folder,
        };
        node.beat()?;
        runtime.block_on(node.kubelet.start())?;
        node.home.set_node(name);
        node.home.serve_kubelet(node.kubelet.root());
        node.home.add_handler("debug-echo")?;
        node.home.join(cluster.kubeconfig());
        Ok(node)
    }

    /// Returns the name of the node.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Copies the handlers that the agent of `other` has compiled to this node's agent.
    pub fn share_compiled(&self, other: &Self) -> Result<()> {
        let state = |home: &Home| home.path().join("state");
        std::fs::create_dir_all(state(&self.home))?;
        let from = state(&other.home).join("native");
        program::run(
            "cp",
            ["-a".as_ref(), from.as_os_str(), state(&self.home).as_ref()],
        )?
        .good()
        .map(drop)
    }

    /// Sends a heartbeat of the node, which is no longer Ready after about forty seconds without one.
    pub fn beat(&self) -> Result<()> {
        let count = self.heartbeats.fetch_add(1, Ordering::Relaxed);
        // The time only has to differ from the one before.
        let time = format!(
            "2020-01-01T{:02}:{:02}:{:02}Z",
            count / 3600 % 24,
            count / 60 % 60,
            count % 60
        );
        let ready = json!({"type": "Ready", "status": "True", "reason": "Test", "message": "", "lastHeartbeatTime": time,
            "lastTransitionTime": "2020-01-01T00:00:00Z"});
        let path = format!("{NODES}/{}/status", self.name);
        self.api
            .merge(&path, &json!({"status": {"conditions": [ready]}}))
            .map(drop)
    }

    /// Waits until the kubelet has this number of healthy devices of a resource.
    pub async fn until_healthy(&self, resource: &str, count: usize) -> Result<()> {
        let what = format!("{} has {count} of {resource}", self.name);
        let check = |kubelet: &Kubelet| {
            let now = kubelet.capacity(resource);
            ensure!(now.is_some_and(|(_, healthy)| healthy == count), "{now:?}");
            Ok(())
        };
        self.kubelet
            .until(&what, check)
            .await
            .with_context(|| self.home.log())
    }
}

impl Drop for StandInNode {
    fn drop(&mut self) {
        if let Err(error) = self.api.delete(&format!("{NODES}/{}", self.name)) {
            eprintln!("{}: {error:#}", self.name);
        }
    }
}

/// Applies a Configuration of debugEcho with these shared devices and a grace of 0 s.
pub fn configure(
    cluster: &Cluster,
    space: &str,
    name: &str,
    capacity: u32,
    devices: &[String],
) -> Result<()> {
    configure_with(cluster, space, name, capacity, devices, &[])
}

/// Applies a Configuration as [`configure`] does, with additional annotations.
pub fn configure_with(
    cluster: &Cluster,
    space: &str,
    name: &str,
    capacity: u32,
    devices: &[String],
    annotations: &[(&str, &str)],
) -> Result<()> {
    let details = json!({"shared": true, "descriptions": devices});
    let mut all = BTreeMap::from([("leafhost.dev/grace", "0s")]);
    all.extend(annotations.iter().copied());
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": space, "annotations": all},
        "spec": {"capacity": capacity, "discoveryHandler": {"name": "debugEcho", "discoveryDetails": details.to_string()}},
    });
    cluster.apply(&object.to_string()).map(drop)
}

/// Returns the path of the Instances of a namespace.
pub fn instances_path(space: &str) -> String {
    format!("/apis/akri.sh/v0/namespaces/{space}/instances")
}

/// Waits until a namespace has `count` Instances with `nodes` nodes each, and returns them.
pub fn until_seen(api: &Api, space: &str, count: usize, nodes: usize) -> Result<Vec<Value>> {
    eventually("all nodes see all devices", || {
        let list = api.get(&instances_path(space))?;
        let all = list
            .get("items")
            .and_then(Value::as_array)
            .context("no items")?;
        let is_whole = |one: &&Value| {
            one.pointer("/spec/nodes")
                .and_then(Value::as_array)
                .map(Vec::len)
                == Some(nodes)
        };
        let whole = all.iter().filter(is_whole).count();
        ensure!(
            all.len() == count && whole == count,
            "{whole} of {} are seen by all",
            all.len()
        );
        Ok(all.clone())
    })
}

/// Returns the name of an object.
pub fn name_of(object: &Value) -> &str {
    object
        .pointer("/metadata/name")
        .and_then(Value::as_str)
        .unwrap_or_default()
}
