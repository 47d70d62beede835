//! Labels of nodes: the controller sets and removes its own, and may write nothing else of a Node.

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::Cluster;
use leafhost_tests::program::source_tree;
use leafhost_tests::requirement;
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::away::Own;
use crate::brokers::Controller;
use crate::pair::Pair;

const NAME: &str = "labelled";
const LABEL: &str = "akri.sh/labelled";
const VALUE: &str = "controller.nodeLabels=true";

/// Returns the labels of both nodes.
fn labels(pair: &Pair) -> Result<[Value; 2]> {
    let label = |index: usize| -> Result<Value> {
        let path = format!("/api/v1/nodes/{}", pair.sites[index].node.name());
        let node = pair.cluster.get(&path)?;
        Ok(node["metadata"]["labels"][LABEL].clone())
    };
    Ok([label(0)?, label(1)?])
}

/// Waits until the nodes have these labels.
fn until(pair: &Pair, controller: &Controller, expected: &[Value; 2]) -> Result<()> {
    eventually(&format!("the labels are {expected:?}"), || {
        let found = labels(pair)?;
        ensure!(found == *expected, "they are {found:?}");
        Ok(())
    })
    .with_context(|| controller.log())
}

#[test]
fn nodes_that_see_a_device_have_a_label_and_those_of_others_stay() -> Result<()> {
    if requirement::lacks(Cluster::missing())? {
        return Ok(());
    }
    // The controller labels all nodes.
    let own = Own::start(2)?;
    let cluster = own.0;
    let pair = Pair::start(cluster, NAME, &[])?;
    let space = &pair.space;
    let controller = Controller::start_with(cluster, space, &["--no-brokers", "--node-labels"])?;
    Controller::grant(cluster, space, &[VALUE])?;
    let chart = source_tree().join("deploy/chart");
    let chart = chart.to_string_lossy();
    let template = [
        "template",
        space.name(),
        &*chart,
        "--namespace",
        space.name(),
    ];
    let only = ["--show-only", "templates/policies-node-labels.yaml"];
    let values = ["--kube-version", "1.37.0", "--set", VALUE];
    let policy = cluster.helm(&[&template[..], &only, &values].concat())?;
    cluster.apply(&policy)?;
    let other = pair.sites[1].node.name();
    cluster.kubectl(&["label", "node", other, &format!("{LABEL}=mine")])?;
    let (set, none) = (json!("true"), Value::Null);

    pair.configure(2, &["one"], "{}")?;
    pair.until("both nodes see the device", &["one"], |_| true)?;
    until(&pair, &controller, &[set.clone(), json!("mine")])?;
    cluster.kubectl(&["label", "node", other, &format!("{LABEL}-")])?;
    until(&pair, &controller, &[set.clone(), set.clone()])?;

    let account = format!("{}-leafhost-controller", space.name());
    let create = ["create", "token", &account, "--namespace", space.name()];
    let token = cluster.kubectl(&create)?;
    let patch = |patch: &Value| {
        let patch = patch.to_string();
        let how = ["patch", "node", other, "--type=merge", "--patch", &patch];
        cluster.kubectl(&[&["--token", token.trim()], &how[..]].concat())
    };
    let refused = |value: &Value| -> Result<()> {
        let error = match patch(value) {
            Ok(_) => String::new(),
            Err(error) => format!("{error:#}"),
        };
        ensure!(
            error.contains("of a Node the controller writes only labels"),
            "{value}: {error:?}"
        );
        Ok(())
    };
    let label = |name: &str, value: &str| json!({"metadata": {"labels": {name: value}}});
    eventually("the policy is in effect", || refused(&label("a", "b")))?;
    for attack in [
        label("akri.sh/x", "false"),
        label("kubernetes.io/hostname", "elsewhere"),
        json!({"metadata": {"annotations": {"a": "b"}}}),
        json!({"spec": {"unschedulable": true}}),
    ] {
        refused(&attack)?;
    }

    pair.configure(2, &[], "{}")?;
    until(&pair, &controller, &[none.clone(), none])
}
