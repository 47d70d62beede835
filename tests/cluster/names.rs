//! Owners of the names that Configurations and Instances of two namespaces share.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Pod};
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::agents::{Agents, configure};
use crate::controller::Controller;
use crate::device::variable;

const RESOURCE_NAMES: &str = "/apis/leafhost.dev/v1alpha1/resourcenames";

fn configuration(space: &str, name: &str) -> String {
    format!("/apis/akri.sh/v0/namespaces/{space}/configurations/{name}")
}

/// Waits until a name is reserved for the namespace.
fn until_reserved(cluster: &Cluster, name: &str, space: &str) -> Result<()> {
    eventually(&format!("{name} is reserved for {space}"), || {
        let found = cluster.get(&format!("{RESOURCE_NAMES}/{name}"))?;
        ensure!(found["spec"]["namespace"] == space, "{found:#}");
        Ok(())
    })
}

/// Waits until the condition `NameTaken` of a Configuration has this status and these words.
fn until_taken(agents: &Agents, space: &str, name: &str, status: &str, words: &str) -> Result<()> {
    let what = format!("{space}/{name}: NameTaken is {status}");
    eventually(&what, || {
        let found = agents.cluster.get(&configuration(space, name))?;
        let conditions = found["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let taken = conditions.find(|one| one["type"] == "NameTaken");
        let taken = taken.with_context(|| format!("no condition: {found:#}"))?;
        let message = taken["message"].as_str().unwrap_or_default();
        ensure!(
            taken["status"] == status && message.contains(words),
            "{taken:#}"
        );
        Ok(())
    })
    .with_context(|| agents.space.state())
}

/// Waits until the first node has `count` of a resource, runs a pod with one of them, and returns the description of its device.
fn device(agents: &Agents, pod: &str, resource: &str, count: u64) -> Result<String> {
    let node = agents.sites.first().context("no site")?.node;
    let resource = format!("akri.sh/{resource}");
    node.wait_allocatable(&resource, count)?;
    let main = Container::new("main").device(&resource, 1);
    agents.space.run(&Pod::new(pod, &[main]).on(node))?;
    let log = agents
        .space
        .wait_logs(pod, "main", "DEBUG_ECHO_DESCRIPTION=")?;
    variable(&log, "DEBUG_ECHO_DESCRIPTION").with_context(|| format!("no device: {log}"))
}

#[test]
fn a_configuration_that_is_named_like_anothers_instance_takes_nothing_from_its_pods() -> Result<()>
{
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut agents = Agents::start(cluster, "named", &[])?;
    let kubeconfig = agents.controller_kubeconfig()?;
    let space = agents.space.name().to_owned();
    let log = tempfile::NamedTempFile::new()?;
    agents.space.show_log(log.path());
    let _controller = Controller::start_as(&kubeconfig, &space, &log)?;
    agents.configure("mine", "debugEcho", "{shared: true, descriptions: [mine]}")?;
    until_reserved(cluster, "mine", &space)?;
    let instance = eventually("there is the Instance", || {
        let found = agents.instances("mine")?;
        let name = found
            .first()
            .and_then(|one| one["metadata"]["name"].as_str());
        name.map(str::to_owned).context("none")
    })?;
    let rival = cluster.namespace("rival")?;
    let details = "{shared: true, descriptions: [theirs]}";
    configure(cluster, rival.name(), &instance, "debugEcho", details)?;
    let told = format!(
        "{}/{instance} has the name of an Instance of {space}/mine",
        rival.name()
    );
    until_taken(&agents, rival.name(), &instance, "True", &told)?;
    until_taken(&agents, &space, "mine", "False", "")?;
    agents.until_told(&[&told])?;
    assert_eq!(device(&agents, "user", &instance, 2)?, "mine");
    let reserved = cluster.get(&format!("{RESOURCE_NAMES}/{instance}"));
    assert!(reserved.is_err(), "{reserved:?}");
    Ok(())
}

#[test]
fn a_configuration_that_is_deleted_and_applied_again_keeps_its_name_until_somebody_frees_it()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut agents = Agents::start(cluster, "keeper", &[])?;
    let kubeconfig = agents.controller_kubeconfig()?;
    let space = agents.space.name().to_owned();
    let log = tempfile::NamedTempFile::new()?;
    agents.space.show_log(log.path());
    let _controller = Controller::start_with(&kubeconfig, &space, &log, &[])?;
    let apply = || agents.configure("kept", "debugEcho", "{shared: true, descriptions: [mine]}");
    apply()?;
    until_reserved(cluster, "kept", &space)?;
    let rival = cluster.namespace("rival")?;
    let details = "{shared: true, descriptions: [theirs]}";
    configure(cluster, rival.name(), "kept", "debugEcho", details)?;
    let told = format!("{}/kept has the name of {space}/kept", rival.name());
    until_taken(&agents, rival.name(), "kept", "True", &told)?;

    // The rival is the older one from here on.
    agents.delete("akric", "kept")?;
    eventually("the controller notes that the name is not used", || {
        let found = cluster.get(&format!("{RESOURCE_NAMES}/kept"))?;
        let noted = &found["metadata"]["annotations"]["leafhost.dev/unused-since"];
        ensure!(noted.is_string(), "{found:#}");
        Ok(())
    })?;
    until_taken(&agents, rival.name(), "kept", "True", &told)?;
    apply()?;
    until_taken(&agents, &space, "kept", "False", "")?;
    until_taken(&agents, rival.name(), "kept", "True", &told)?;
    assert_eq!(device(&agents, "again", "kept", 1)?, "mine");
    let found = cluster.get(&format!("{RESOURCE_NAMES}/kept"))?;
    ensure!(found["spec"]["namespace"] == space.as_str(), "{found:#}");

    // An administrator frees the name, and the oldest Configuration gets it.
    cluster.kubectl(&["delete", "resourcename", "kept"])?;
    until_reserved(cluster, "kept", rival.name())?;
    let told = format!("{space}/kept has the name of {}/kept", rival.name());
    until_taken(&agents, &space, "kept", "True", &told)?;
    until_taken(&agents, rival.name(), "kept", "False", "")
}

/// Checks that the webhook refuses the name of an existing Configuration of the namespace `default` in another namespace, and the names of its
/// Instances.
pub fn check_webhook(cluster: &Cluster, name: &str) -> Result<()> {
    until_reserved(cluster, name, "default")?;
    let other = cluster.namespace("other")?;
    let spec = json!({"discoveryHandler": {"name": "udev", "discoveryDetails": "udevRules: ['KERNEL==\"leafhost-none\"']"}});
    let instance = format!("{name}-a19705");
    for (space, name, by) in [
        (
            other.name(),
            name,
            "metadata.name: another namespace has this name",
        ),
        (
            other.name(),
            &instance,
            "metadata.name: Instances of another namespace can have this name",
        ),
        ("default", &instance, "can have this name; choose a name"),
    ] {
        let object: Value = json!({"apiVersion": "akri.sh/v0", "kind": "Configuration",
            "metadata": {"name": name, "namespace": space}, "spec": spec});
        // The webhook may have been asked just before it was allowed to read the names.
        within(Duration::from_mins(1), by, || {
            match cluster.apply(&object.to_string()) {
                Ok(_) => bail!("{space}/{name} is stored"),
                Err(error) => {
                    let text = format!("{error:#}");
                    ensure!(
                        text.contains("denied the request") && text.contains(by),
                        "{text}"
                    );
                    Ok(())
                }
            }
        })?;
    }
    Ok(())
}
