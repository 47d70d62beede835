//! Agents that have joined a cluster, and the objects of a namespace there.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kube::config::{KubeConfigOptions, Kubeconfig};
use leafhost_tests::agent::Home;
use leafhost_tests::cluster::{Cluster, Namespace, Node};
use leafhost_tests::wait::within;
use serde_json::{Value, json};

use crate::installed::as_installed;

const TIMEOUT: Duration = Duration::from_mins(2);

/// Prepares an agent on a node; does not start it.
pub fn agent(cluster: &Cluster, node: &'static Node, handlers: &[&str]) -> Result<Home> {
    cluster.define()?;
    let mut home = Home::on(node)?;
    as_installed(&mut home)?;
    for name in handlers {
        home.add_handler(name)?;
    }
    home.join(cluster.kubeconfig());
    Ok(home)
}

/// Creates a Configuration.
pub fn configure(
    cluster: &Cluster,
    space: &Namespace<'_>,
    name: &str,
    handler: &str,
    details: &str,
) -> Result<()> {
    let object = json!({
        "apiVersion": "akri.sh/v0",
        "kind": "Configuration",
        "metadata": {"name": name},
        "spec": {"capacity": 5, "discoveryHandler": {"name": handler, "discoveryDetails": details}},
    });
    let all = collection(space, "configurations");
    cluster.api().create(&all, &object).map(drop)
}

/// Returns the path of a collection of Akri's objects.
pub fn collection(space: &Namespace<'_>, kind: &str) -> String {
    format!("/apis/akri.sh/v0/namespaces/{}/{kind}", space.name())
}

/// Returns all Instances of a namespace.
pub fn instances(cluster: &Cluster, space: &Namespace<'_>) -> Result<Vec<Value>> {
    let list = cluster.get(&collection(space, "instances"))?;
    let items = list.get("items").and_then(Value::as_array);
    items.cloned().context("a list without items")
}

/// Creates a client of the same kind as the agent's.
pub async fn client(cluster: &Cluster) -> Result<kube::Client> {
    client_of(cluster.kubeconfig()).await
}

/// Creates a client with a kubeconfig.
pub async fn client_of(kubeconfig: &Path) -> Result<kube::Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let options = KubeConfigOptions::default();
    let config = kube::Config::from_custom_kubeconfig(file, &options).await?;
    Ok(kube::Client::try_from(config)?)
}

/// Formats seconds with two digits.
pub fn seconds(time: Duration) -> String {
    format!("{:.2} s", time.as_secs_f64())
}

/// Waits until the namespace has `count` Instances; returns the time at which they were seen.
pub fn until_instances(
    cluster: &Cluster,
    space: &Namespace<'_>,
    count: usize,
    home: &Home,
) -> Result<Instant> {
    // One is enough: the answer has the number of the remaining ones.
    let path = format!("{}?limit=1", collection(space, "instances"));
    let seen = within(TIMEOUT, "all Instances", || {
        let list = cluster.get(&path)?;
        let more = list.pointer("/metadata/remainingItemCount");
        let more = more.and_then(Value::as_u64).unwrap_or_default();
        let first = list.get("items").and_then(Value::as_array);
        let found = first.map_or(0, Vec::len) + usize::try_from(more)?;
        ensure!(found == count, "{found} of {count}");
        Ok(Instant::now())
    });
    seen.with_context(|| home.log())
}
