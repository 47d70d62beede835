//! Agents whose Configurations and Instances are objects of the API server.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Pod};
use leafhost_tests::wait::eventually;
use serde_json::Value;

use crate::device::Site;

const INSTANCES: &str = "/apis/akri.sh/v0/instances";

/// The definitions of the objects, as the chart has them.
fn define(cluster: &Cluster) -> Result<()> {
    cluster.apply(include_str!("../../deploy/chart/crds/crds.yaml"))?;
    eventually("the API server serves Instances", || cluster.get(INSTANCES)).map(drop)
}

/// An agent on each node, in the cluster.
fn sites(cluster: &'static Cluster) -> Result<Vec<Site>> {
    define(cluster)?;
    let taken = cluster.take_nodes(2)?;
    let sites = taken.into_iter().map(|taken| {
        let mut site = Site::on(cluster, taken)?;
        site.home.add_handler("debug-echo")?;
        site.home.join(cluster.kubeconfig());
        site.home.start(&[])?;
        Ok(site)
    });
    sites.collect()
}

fn configuration(space: &Namespace<'_>, name: &str, capacity: u32, details: &str) -> String {
    format!(
        "apiVersion: akri.sh/v0\nkind: Configuration\nmetadata: {{name: {name}, namespace: {}}}\nspec:\n  discoveryHandler:\n    \
         name: debugEcho\n    discoveryDetails: |\n      {details}\n  capacity: {capacity}\n  brokerProperties: {{MODE: fast}}\n",
        space.name()
    )
}

/// The Instances of a namespace.
fn instances(cluster: &Cluster, space: &Namespace<'_>) -> Result<Vec<Value>> {
    let path = format!("/apis/akri.sh/v0/namespaces/{}/instances", space.name());
    let list = cluster.get(&path)?;
    Ok(list["items"].as_array().context("no items")?.clone())
}

fn texts(value: &Value) -> BTreeSet<&str> {
    let all = value.as_array().into_iter().flatten();
    all.filter_map(Value::as_str).collect()
}

#[test]
fn two_nodes_share_the_instances_of_a_configuration_and_their_pods_get_different_slots()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let sites = sites(cluster)?;
    let space = sites[0].namespace("shared")?;
    space.show_log(&sites[1].home.log_file());
    let details = "{shared: true, descriptions: [one, two]}";
    let applied = Instant::now();
    cluster.apply(&configuration(&space, "echo", 2, details))?;
    let both = BTreeSet::from(["node-a", "node-b"]);
    let found = eventually("both nodes are in both Instances", || {
        let found = instances(cluster, &space)?;
        ensure!(
            found.len() == 2 && found.iter().all(|one| texts(&one["spec"]["nodes"]) == both),
            "{found:#?}"
        );
        Ok(found)
    })?;
    println!(
        "both nodes are in both Instances after {:?}",
        applied.elapsed()
    );
    for instance in &found {
        assert_eq!(instance["spec"]["capacity"], 2);
        assert_eq!(
            instance["status"]["nodes"]
                .as_object()
                .map(serde_json::Map::len),
            Some(2)
        );
    }
    for site in &sites {
        let name = site.node.name();
        site.until_amounts("akri.sh/echo", 2, 2)?;
        let main = Container::new("main").device("akri.sh/echo", 2);
        space.create(&Pod::new(&format!("on-{name}"), &[main]).on(site.node))?;
    }
    for site in &sites {
        let pod = format!("on-{}", site.node.name());
        space.wait_running(&pod)?;
        space.wait_logs(&pod, "main", "MODE=fast")?;
        space.wait_logs(&pod, "main", "DEBUG_ECHO_DESCRIPTION")?;
    }
    let mut holders: BTreeMap<String, usize> = BTreeMap::new();
    for instance in instances(cluster, &space)? {
        let usage = instance["spec"]["deviceUsage"]
            .as_object()
            .context("no deviceUsage")?;
        for holder in usage.values().filter_map(Value::as_str) {
            let node = holder.rsplit(':').next().unwrap_or_default();
            *holders.entry(node.to_owned()).or_default() += 1;
        }
    }
    // Two Instances with two slots each: each pod has one slot of each.
    assert_eq!(
        holders,
        BTreeMap::from([("node-a".to_owned(), 2), ("node-b".to_owned(), 2)])
    );
    space.delete("on-node-a")?;
    eventually("the slots of a pod that has ended are free", || {
        for instance in instances(cluster, &space)? {
            let usage = instance["spec"]["deviceUsage"]
                .as_object()
                .context("no deviceUsage")?;
            let free = usage.values().filter(|usage| *usage == "").count();
            ensure!(free == 1, "{usage:?}");
        }
        Ok(())
    })?;
    space.delete("on-node-b")?;
    cluster.kubectl(&[
        "delete",
        "configuration",
        "echo",
        "--namespace",
        space.name(),
    ])?;
    eventually("the Instances go with their Configuration", || {
        let left = instances(cluster, &space)?;
        ensure!(left.is_empty(), "{left:#?}");
        Ok(())
    })?;
    Ok(())
}
