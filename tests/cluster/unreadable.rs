//! Status entry of one node that no agent can read: it takes the device from no other node, and no other device.

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::wait::eventually;
use nix::sys::signal::Signal;
use serde_json::json;

use crate::controller::Controller;
use crate::pair::{Pair, resource, used};

#[test]
fn an_entry_that_cannot_be_read_takes_a_device_from_no_other_node() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut pair = Pair::start(cluster, "unreadable", &[])?;
    pair.configure(2, &["one", "two"], "{}")?;
    let begun = pair.until("both nodes see both devices", &["one", "two"], |_| true)?;
    let (one, two) = (resource(&begun["one"]), resource(&begun["two"]));
    let log = tempfile::NamedTempFile::new()?;
    let _controller = Controller::start_as(cluster.kubeconfig(), pair.space.name(), &log)?;
    pair.space.show_log(log.path());
    let node = |number: usize| -> Result<&'static str> {
        Ok(pair.sites.get(number).context("no such node")?.node.name())
    };
    let (first, second) = (node(0)?, node(1)?);
    // A running agent would rewrite its own entry.
    let site = pair.sites.first_mut().context("no site")?;
    site.home.stop(Signal::SIGTERM)?;
    let name = begun["one"]["metadata"]["name"].as_str();
    let name = name.context("no name")?;
    let path = format!(
        "/apis/akri.sh/v0/namespaces/{}/instances/{name}",
        pair.space.name()
    );
    for (number, (what, odd)) in [
        (
            "a reason for what is healthy",
            json!({"status": {"nodes": {first: {"health": "Healthy", "reason": "x"}}}}),
        ),
        (
            "no reason for what is not",
            json!({"status": {"nodes": {first: {"health": "Unhealthy", "reason": null}}}}),
        ),
        (
            "a generation that is no number",
            json!({"metadata": {"annotations": {"leafhost.dev/generation": "x"}}}),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        cluster.api().merge(&path, &odd)?;
        let site = pair.sites.get(1).context("no site")?;
        let pod = format!("user-{number}");
        pair.space.run(&pair.pod(&pod, 1, &begun["one"])?)?;
        for resource in [&one, &two] {
            site.node
                .wait_allocatable(resource, 2)
                .with_context(|| format!("{what}: {resource}"))?;
        }
        let found = pair.instances()?;
        let users = used(&found["one"]);
        ensure!(users.values().eq([&second]), "{what}: {users:?}");
        ensure!(
            found["one"]["metadata"]["uid"] == begun["one"]["metadata"]["uid"],
            "{what}: it was created again"
        );
        pair.space.delete(&pod)?;
        eventually("the slot comes back", || {
            let found = pair.instances()?;
            let users = used(&found["one"]);
            ensure!(users.is_empty(), "{users:?}");
            Ok(())
        })
        .with_context(|| what)?;
    }
    // The controller counts both devices of the Configuration.
    let configurations = format!(
        "/apis/akri.sh/v0/namespaces/{}/configurations",
        pair.space.name()
    );
    eventually("the Configuration has two devices", || {
        let list = cluster.get(&configurations)?;
        let devices = &list["items"][0]["status"]["devices"];
        ensure!(*devices == 2, "{list:#}");
        Ok(())
    })?;
    let site = pair.sites.first_mut().context("no site")?;
    site.home.start(&[])?;
    pair.until("its node has put the entry right", &["one", "two"], |one| {
        one["status"]["nodes"][first] == json!({"health": "Healthy"})
    })?;
    Ok(())
}
