//! Device nodes in containers: exactly those of the container's devices.

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Pod};
use leafhost_tests::requirement;
use leafhost_tests::zram::{self, Zram};

use crate::device::{Site, variable};

/// Starts an agent that finds these devices.
pub fn site(cluster: &'static Cluster, name: &str, devices: &[Zram]) -> Result<Site> {
    let mut site = Site::on(cluster, cluster.take_node()?)?;
    site.home.add_handler("udev")?;
    let names: Vec<String> = devices.iter().map(Zram::name).collect();
    let rule = format!(
        "{{udevRules: ['SUBSYSTEM==\"block\", KERNEL==\"{}\"']}}",
        names.join("|")
    );
    site.configure_for(name, "udev", 1, &rule)?;
    site.home.start(&[])?;
    Ok(site)
}

#[test]
fn a_container_can_open_the_node_of_its_device_and_no_other() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    if requirement::lacks(zram::missing())? {
        return Ok(());
    }
    let devices = [Zram::add()?, Zram::add()?];
    let site = site(cluster, "node", &devices)?;
    let space = site.namespace("node")?;
    site.until_amounts("akri.sh/node", 2, 2)?;
    let main = Container::new("main").device("akri.sh/node", 1);
    space.run(&Pod::new("pod", &[main]).on(site.node))?;
    let log = space.wait_logs("pod", "main", "UDEV_DEVNODE=")?;
    let own = variable(&log, "UDEV_DEVNODE").context("no node")?;
    let other = devices.iter().map(Zram::node).find(|node| *node != own);
    let other = other.context("it has a device of nobody")?;
    let nodes = space.exec("pod", "main", "ls /dev/zram*")?;
    assert_eq!(nodes.trim(), own);
    space.exec("pod", "main", &format!("head -c 1 {own}"))?;
    // Creating a device node is allowed, opening it is not.
    let numbers = site.node.run("stat", &["-c", "%Hr %Lr", &other])?;
    let script = format!(
        "/bin/busybox mknod /tmp/other b {} && ! head -c 1 /tmp/other 2>&1",
        numbers.trim()
    );
    let refused = space.exec("pod", "main", &script)?;
    ensure!(refused.contains("Operation not permitted"), "{refused}");
    Ok(())
}

#[test]
fn a_request_for_three_devices_gives_variables_and_nodes_of_all_three() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    if requirement::lacks(zram::missing())? {
        return Ok(());
    }
    let devices = [Zram::add()?, Zram::add()?, Zram::add()?];
    let site = site(cluster, "three", &devices)?;
    let space = site.namespace("three")?;
    site.until_amounts("akri.sh/three", 3, 3)?;
    let main = Container::new("main").device("akri.sh/three", 3);
    let main = main.script("trap exit TERM; env; echo 'These are all'; sleep 2147483647 & wait");
    space.run(&Pod::new("pod", &[main]).on(site.node))?;
    let log = space.wait_logs("pod", "main", "These are all")?;
    site.until_held_by(&space, &["pod"])?;
    for device in &devices {
        let node = device.node();
        space.exec("pod", "main", &format!("head -c 1 {node}"))?;
    }
    let status = site.home.status()?;
    let slots = status
        .pointer("/kubelet/slots")
        .and_then(|all| all.as_array());
    let slots = slots.context("no slots")?;
    assert_eq!(slots.len(), 3);
    let mut expected = Vec::new();
    for slot in slots {
        let text = |name: &str| slot.get(name).and_then(|text| text.as_str());
        let (id, slot) = text("device").zip(text("slot")).context("no slot")?;
        let (instance, _) = slot.rsplit_once('-').context("no number")?;
        let hash = instance.trim_start_matches("three-").to_uppercase();
        let node = variable(&log, &format!("UDEV_DEVNODE_{hash}"));
        expected.push((id, node.with_context(|| format!("{slot}: {log}"))?));
    }
    // The variable without a suffix is that of the first ID.
    expected.sort();
    let first = expected.first().map(|(_, node)| node.clone());
    assert_eq!(variable(&log, "UDEV_DEVNODE"), first);
    let mut nodes: Vec<String> = expected.into_iter().map(|(_, node)| node).collect();
    nodes.sort();
    let mut all: Vec<String> = devices.iter().map(Zram::node).collect();
    all.sort();
    assert_eq!(nodes, all);
    Ok(())
}
