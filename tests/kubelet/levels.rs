//! Resources that a Configuration declares for its devices.

use anyhow::{Result, ensure};
use nix::sys::signal::Signal;

use crate::node::{Node, SOON, configuration, ids, list, resource, text, used};

/// Writes the Configuration `echo` with the annotation.
fn annotate(node: &Node, resources: &str) -> Result<()> {
    let yaml = configuration("echo", 2, &["foo", "bar"]);
    let metadata = format!(
        r#"metadata: {{name: "echo", annotations: {{leafhost.dev/resources: {resources}}}}}"#
    );
    let yaml = yaml.replace(r#"metadata: {name: "echo"}"#, &metadata);
    ensure!(yaml.contains(&metadata), "{yaml}");
    node.home.write("configurations/echo.yaml", yaml)
}

/// Waits until these resources are offered and no others.
fn until_offered(node: &Node, names: &[&str]) -> Result<()> {
    node.until_listed(names.len())?;
    let status = node.home.status()?;
    let resources = list(&status, "/kubelet/resources").iter();
    let offered: Vec<_> = resources.map(|resource| text(resource, "/name")).collect();
    assert_eq!(offered, names);
    Ok(())
}

#[test]
fn a_configuration_with_one_level_has_no_resource_of_the_other() -> Result<()> {
    let mut node = Node::new()?;
    annotate(&node, "configuration")?;
    node.home.start(&SOON)?;
    until_offered(&node, &["akri.sh/echo"])?;
    let uid = node.run("p", "akri.sh/echo", 2)?;
    assert_eq!(used(&node.usage()?).len(), 2);
    node.delete(&uid)?;
    node.until_used(&[].into())?;

    annotate(&node, "instances")?;
    let mut own = [
        resource(&node.instance("foo")?),
        resource(&node.instance("bar")?),
    ];
    own.sort();
    let own = own.each_ref().map(String::as_str);
    until_offered(&node, &own)?;
    node.run("q", own[0], 2)?;
    assert_eq!(used(&node.usage()?).len(), 2);
    // Also after a restart, which reads the Configurations again.
    node.home.stop(Signal::SIGTERM)?;
    node.home.start(&SOON)?;
    until_offered(&node, &own)
}

#[test]
fn what_a_pod_has_stays_listed_when_its_level_is_no_longer_offered() -> Result<()> {
    let node = Node::with(2, &["foo", "bar"], &SOON)?;
    let name = node.instance("foo")?;
    let own = resource(&name);
    let uid = node.run("p", &own, 1)?;
    let held = node.held(&uid, &own);
    annotate(&node, "configuration")?;
    node.until_listed(2)?;
    node.until("only what the pod has is listed", |kubelet| {
        let listed = kubelet.devices(&own);
        ensure!(
            listed
                .iter()
                .all(|(id, device)| (device.health == "Healthy") == held.contains(id)),
            "{listed:?}"
        );
        Ok(())
    })?;
    assert_eq!(used(&node.usage()?), held);
    node.delete(&uid)?;
    node.until_used(&ids([]))?;
    node.until("the node has none of the Instance's any more", |kubelet| {
        let now = kubelet.capacity(&own);
        ensure!(now.is_none_or(|(_, healthy)| healthy == 0), "{now:?}");
        Ok(())
    })
}
