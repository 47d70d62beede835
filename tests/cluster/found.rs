//! Devices that installed agents find: a camera that both nodes reach, and a network interface of one node.

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Node, Pod};
use leafhost_tests::lan::Lan;
use leafhost_tests::peer::{self, Peer};
use leafhost_tests::requirement;
use leafhost_tests::wait::{eventually, within};
use serde_json::Value;

use crate::installed::Release;
use crate::pair::used;

const UUID: &str = "5f5a69c2-e0ae-504f-829b-00fcfd5a0001";
const CONFIGURATIONS: &str = r#"apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: cameras}
spec:
  discoveryHandler:
    name: onvif
    discoveryDetails: 'discoveryTimeoutSeconds: 1'
  capacity: 2
---
apiVersion: akri.sh/v0
kind: Configuration
metadata: {name: sensors}
spec:
  discoveryHandler:
    name: udev
    discoveryDetails: |
      udevRules: ['SUBSYSTEM=="net", KERNEL=="sensor*"']
"#;

/// Network interface in a node, which the kernel announces there; removed on drop.
struct Interface<'n>(&'n Node);

impl<'n> Interface<'n> {
    fn add(node: &'n Node) -> Result<Self> {
        node.run("ip", &["link", "add", "sensor0", "type", "bridge"])?;
        Ok(Self(node))
    }
}

impl Drop for Interface<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.0.run("ip", &["link", "delete", "sensor0"]) {
            eprintln!("sensor0 stays: {error:#}");
        }
    }
}

#[test]
fn a_camera_on_the_nodes_network_is_shared_and_a_device_of_one_node_is_offered_there_alone()
-> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    if requirement::lacks(peer::missing())? {
        return Ok(());
    }
    let release = Release::install(cluster)?;
    let both: BTreeSet<String> = ["node-a", "node-b"].map(String::from).into();
    release.add_handler("onvif")?;
    let lan = Lan::with_bridges(0)?;
    let host = lan.host_on("camera", &[])?;
    let address = cluster.connect(&host)?;
    let mut camera = peer::rust(&host, "leafhost-camera")?;
    camera.args(["--address", &address, "--uuid", UUID]);
    let _camera = Peer::start(camera)?;

    let space = cluster.namespace("found")?;
    let apply = ["apply", "--filename", "-", "--namespace", space.name()];
    cluster.kubectl_with(&apply, CONFIGURATIONS)?;
    for handler in ["onvif", "udev"] {
        eventually("the handler is active on both nodes", || {
            let nodes = release.nodes_where(handler, "Active")?;
            ensure!(nodes == both, "{handler} is active on {nodes:?}");
            Ok(())
        })
        .with_context(|| release.state())?;
    }
    let path = format!("/apis/akri.sh/v0/namespaces/{}/instances", space.name());
    // Waits until the only Instance of a Configuration has these nodes and returns it.
    let until_on = |configuration: &str, expected: &BTreeSet<String>| {
        let limit = Duration::from_secs(20);
        within(limit, &format!("{configuration} on {expected:?}"), || {
            let list = cluster.get(&path)?;
            let all = list["items"].as_array().context("no items")?;
            let is_its = |one: &&Value| one["spec"]["configurationName"] == configuration;
            let its: Vec<&Value> = all.iter().filter(is_its).collect();
            let [one] = its.as_slice() else {
                anyhow::bail!("{its:#?}");
            };
            let nodes: BTreeSet<String> = serde_json::from_value(one["spec"]["nodes"].clone())?;
            ensure!(nodes == *expected, "{one:#}");
            Ok((*one).clone())
        })
        .with_context(|| release.state())
    };
    let shared = until_on("cameras", &both)?;
    assert_eq!(shared["spec"]["shared"], true);

    let [first, second] = release.nodes.as_slice() else {
        anyhow::bail!("not two nodes");
    };
    let interface = Interface::add(first)?;
    let own = until_on("sensors", &BTreeSet::from([first.name().to_owned()]))?;
    assert_eq!(own["spec"]["shared"], false);
    for node in [first, second] {
        node.wait_allocatable("akri.sh/cameras", 1)?;
        let main = Container::new("main").device("akri.sh/cameras", 1);
        let name = format!("on-{}", node.name());
        space.run(&Pod::new(&name, &[main]).on(node))?;
        let url = format!("ONVIF_DEVICE_SERVICE_URL=http://{address}:80/onvif/device_service");
        space.wait_logs(&name, "main", &url)?;
    }
    let shared = until_on("cameras", &both)?;
    let holders: BTreeSet<&str> = used(&shared)
        .into_values()
        .filter_map(|holder| holder.rsplit(':').next())
        .collect();
    assert_eq!(holders, BTreeSet::from(["node-a", "node-b"]), "{shared:#}");

    first.wait_allocatable("akri.sh/sensors", 1)?;
    second.wait_allocatable("akri.sh/sensors", 0)?;
    let main = Container::new("main").device("akri.sh/sensors", 1);
    let pod = space.run(&Pod::new("sensor", &[main]))?;
    assert_eq!(pod["spec"]["nodeName"], first.name());
    let path_of_device = "UDEV_DEVPATH=/devices/virtual/net/sensor0";
    space.wait_logs("sensor", "main", path_of_device)?;
    space.delete("sensor")?;
    drop(interface);
    let left = || {
        let list = cluster.get(&path)?;
        let all = list["items"].as_array().context("no items")?;
        let uids: Vec<&Value> = all.iter().map(|one| &one["metadata"]["uid"]).collect();
        ensure!(uids == [&shared["metadata"]["uid"]], "{all:#?}");
        Ok(())
    };
    eventually("the device that is unplugged has no Instance", left)
        .with_context(|| release.state())
}
