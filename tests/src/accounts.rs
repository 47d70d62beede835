//! Service accounts that the chart creates for a release in a namespace of the same name, and kubeconfigs to act as one of them.

use std::fs;

use anyhow::{Context, Result, bail};

use crate::cluster::Cluster;
use crate::program::source_tree;

/// Returns the name of the service account of a release's agents.
pub fn account(space: &str) -> String {
    format!("{space}-leafhost-agent")
}

/// Renders the RBAC template of a release in a namespace of the same name, with these additional values.
pub fn rights(cluster: &Cluster, space: &str, values: &[&str]) -> Result<String> {
    rendered(cluster, space, "rbac", values)
}

/// Renders one template of the chart for a release in a namespace of the same name, with these additional values.
pub fn rendered(cluster: &Cluster, space: &str, template: &str, values: &[&str]) -> Result<String> {
    let file = format!("templates/{template}.yaml");
    let chart = source_tree().join("deploy/chart");
    let chart = chart.to_string_lossy();
    let template = [
        "template",
        space,
        &chart,
        "--namespace",
        space,
        "--show-only",
        &file,
    ];
    let namespaces = format!("agent.propertiesNamespaces={{{space}}}");
    let mut arguments = [&template[..], &["--set", &namespaces]].concat();
    for value in values {
        arguments.extend(["--set", value]);
    }
    cluster.helm(&arguments)
}

/// Returns a kubeconfig with a token of the account that is bound to a node.
pub fn token(cluster: &Cluster, space: &str, node: &str) -> Result<String> {
    let create = ["create", "token", &account(space), "--namespace", space];
    let bound = ["--bound-object-kind", "Node", "--bound-object-name", node];
    kubeconfig(cluster, &[&create[..], &bound].concat())
}

/// Returns a kubeconfig with the token that `kubectl` prints for the arguments `create`.
pub fn kubeconfig(cluster: &Cluster, create: &[&str]) -> Result<String> {
    let token = cluster.kubectl(create)?;
    let admin = fs::read_to_string(cluster.kubeconfig())?;
    let folder = cluster.kubeconfig().parent().context("no folder")?;
    let mut lines = Vec::new();
    for line in admin.lines() {
        lines.push(match line.split_once(": ") {
            Some((key, _)) if key.trim() == "token" => format!("{key}: {}", token.trim()),
            Some((key, file)) if key.trim() == "certificate-authority" => {
                format!("{key}: {}", folder.join(file).display())
            }
            _ => line.to_owned(),
        });
    }
    if !lines.iter().any(|line| line.contains(token.trim())) {
        bail!("the kubeconfig has no token: {admin}");
    }
    Ok(lines.join("\n"))
}
