//! Pods that do not run as root open their device in the two ways of `docs/operate.md`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, chown};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Pod, Setup};
use leafhost_tests::program::source_tree;
use leafhost_tests::requirement;
use leafhost_tests::zram::{self, Zram};
use serde_json::json;

use crate::away::Own;
use crate::nodes;

/// User and group of the pods.
const USER: u32 = 1000;
/// Group `disk`, to which udevd gives such nodes, too.
const GROUP: u32 = 6;

/// Adds a device whose node has this mode.
fn device(mode: u32) -> Result<Zram> {
    let device = Zram::add()?;
    chown(device.node(), Some(0), Some(GROUP))?;
    fs::set_permissions(device.node(), Permissions::from_mode(mode))?;
    Ok(device)
}

fn pod(name: &str, resource: &str, groups: &[u32]) -> Pod {
    let main = Container::new("main").device(resource, 1);
    let context = json!({"runAsUser": USER, "runAsGroup": USER, "supplementalGroups": groups});
    Pod::new(name, &[main]).with("securityContext", context)
}

/// Opens the device in a running pod; returns lines with the pod's user, the owner of the node, and the result.
fn open(space: &Namespace<'_>, pod: &str) -> Result<String> {
    let script =
        "id -u; stat -c '%u:%g' $UDEV_DEVNODE; head -c 1 $UDEV_DEVNODE 2>&1 && echo opened || true";
    space.exec(pod, "main", script)
}

#[test]
fn a_pod_that_is_not_root_opens_its_device_as_a_member_of_the_nodes_group() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    if requirement::lacks(zram::missing())? {
        return Ok(());
    }
    let devices = [device(0o660)?, device(0o660)?];
    let site = nodes::site(cluster, "group", &devices)?;
    let space = site.namespace("group")?;
    let resource = "akri.sh/group";
    site.until_amounts(resource, 2, 2)?;
    let instances = site.home.instances(2)?;
    let group = instances
        .first()
        .and_then(|one| one.pointer("/spec/brokerProperties/UDEV_GID")?.as_str());
    let group: u32 = group.context("no UDEV_GID")?.parse()?;
    assert_eq!(group, GROUP);
    space.run(&pod("stranger", resource, &[]).on(site.node))?;
    space.run(&pod("member", resource, &[group]).on(site.node))?;
    let refused = open(&space, "stranger")?;
    ensure!(
        refused.starts_with(&format!("{USER}\n0:{group}\n"))
            && refused.contains("Permission denied")
            && !refused.contains("opened"),
        "{refused}"
    );
    let opened = open(&space, "member")?;
    assert_eq!(opened, format!("{USER}\n0:{group}\nopened\n"));
    Ok(())
}

/// Returns the option of containerd as the documentation has it.
fn documented() -> Result<String> {
    let text = fs::read_to_string(source_tree().join("docs/operate.md"))?;
    let heading = "\n### Pods that do not run as root\n";
    let (_, text) = text.split_once(heading).context("no section")?;
    let (_, text) = text.split_once("```toml\n").context("no option")?;
    let (option, _) = text.split_once("```").context("it does not end")?;
    Ok(option.to_owned())
}

#[test]
fn a_pod_that_is_not_root_owns_its_device_if_containerd_has_the_documented_option() -> Result<()> {
    if requirement::lacks(Cluster::missing())? || requirement::lacks(zram::missing())? {
        return Ok(());
    }
    let own = Own::start_with(&Setup {
        containerd: documented()?,
        ..Setup::default()
    })?;
    // The mode gives the group no access.
    let devices = [device(0o600)?];
    let site = nodes::site(own.0, "owner", &devices)?;
    let space = site.namespace("owner")?;
    site.until_amounts("akri.sh/owner", 1, 1)?;
    space.run(&pod("owner", "akri.sh/owner", &[]).on(site.node))?;
    let opened = open(&space, "owner")?;
    assert_eq!(opened, format!("{USER}\n{USER}:{USER}\nopened\n"));
    Ok(())
}
