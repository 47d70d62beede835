//! Python handler that was built for Akri, with an agent of a cluster: from its registration to the variable in a pod.

use std::process::Command;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::wait::eventually;
use leafhost_tests::{program, requirement};
use serde_json::Value;

use crate::device::Site;

const CONFIGURATION: &str = r"apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: py}
spec:
  discoveryHandler:
    name: pyEcho
    discoveryDetails: ''
";

const GRANTS: &str = r#"apiVersion: v1
kind: ConfigMap
metadata:
  name: grants
  labels: {leafhost.dev/handlers: "true"}
data:
  pyEcho.grants.yaml: "devices: {env: ['PY_*']}"
"#;

#[test]
fn what_a_handler_in_python_sees_is_a_device_of_pods_and_kubectl_shows_where_it_serves()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let python = peer::python_folder()?.join("bin/python");
    let name = python.to_str().context("the path is no text")?;
    if requirement::lacks(requirement::files(&[name], "make setup-test"))? {
        return Ok(());
    }
    let taken = cluster.take_node()?;
    cluster.define()?;
    let space = cluster.namespace("external")?;
    let apply = ["apply", "--filename", "-", "--namespace", space.name()];
    for manifest in [GRANTS, CONFIGURATION] {
        eventually("it is applied", || cluster.kubectl_with(&apply, manifest))?;
    }
    let mut site = Site::on(cluster, taken)?;
    site.home.join(cluster.kubeconfig());
    let folder = site.home.path().join("akri");
    let folder = folder.to_str().context("the path is no text")?.to_owned();
    let arguments = [
        "--handlers-namespace",
        space.name(),
        "--external-handlers-dir",
        &folder,
    ];
    site.home.start(&arguments)?;
    space.show_log(&site.home.log_file());

    let mut command = Command::new(&python);
    command
        .env("PROTO", program::source_tree().join("host/external/proto"))
        .arg(program::source_tree().join("tests/system/external.py"))
        .args([&folder, "pyEcho", "py.sock"]);
    let mut handler = Peer::start(command)?;
    for (line, answer) in [("set one", "set"), ("register", "registered")] {
        let said = handler.ask(line)?;
        ensure!(said == answer, "{line}: {said}");
    }
    let node = site.node;
    node.wait_allocatable("akri.sh/py", 1)?;
    let main = Container::new("main").device("akri.sh/py", 1);
    space.run(&Pod::new("user", &[main]).on(node))?;
    space.wait_logs("user", "main", "PY_ID=one")?;
    eventually("kubectl shows the handler", || {
        let list = cluster.get("/apis/leafhost.dev/v1alpha1/discoveryhandlers")?;
        let all = list["items"].as_array().context("no items")?;
        let is_it =
            |one: &&Value| one["spec"]["handler"] == "pyEcho" && one["spec"]["node"] == node.name();
        let status = &all.iter().find(is_it).context("not there")?["status"];
        let source = &status["sources"][0];
        ensure!(status["phase"] == "Active", "{status:#}");
        ensure!(source["kind"] == "external", "{status:#}");
        let endpoint = source["endpoint"].as_str().unwrap_or_default();
        ensure!(endpoint.ends_with("akri/py.sock"), "{status:#}");
        Ok(())
    })?;
    handler.end()?;
    Ok(())
}
