//! Devices that the scheduler gives: DeviceClasses, ResourceSlices, and claims of pods.

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::brokers::Controller;
use crate::device::variable;

/// Applies a Configuration of two local devices of each node.
fn configure(agents: &Agents, name: &str, allocation: Option<&str>) -> Result<()> {
    let annotations = allocation.map(|value| json!({"leafhost.dev/allocation": value}));
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": agents.space.name(), "annotations": annotations},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "{shared: false, descriptions: [one, two]}"}, "capacity": 1},
    });
    agents.cluster.apply(&object.to_string()).map(drop)
}

/// Returns the slices of a node.
fn slices(agents: &Agents, node: &str) -> Result<Vec<Value>> {
    let list = agents
        .cluster
        .get("/apis/resource.k8s.io/v1/resourceslices")?;
    let all = list["items"].as_array().context("no items")?.iter();
    let own = all
        .filter(|one| one["spec"]["nodeName"] == node && one["spec"]["driver"] == "leafhost.dev");
    Ok(own.cloned().collect())
}

/// Returns who has the slots of a Configuration on a node.
fn held(agents: &Agents, configuration: &str, node: &str) -> Result<Vec<String>> {
    let instances = agents.instances(configuration)?;
    let own = instances.iter().filter(|one| {
        let nodes = one["spec"]["nodes"].as_array();
        nodes.is_some_and(|nodes| nodes.iter().any(|seen| seen == node))
    });
    let usage = own.filter_map(|one| one["spec"]["deviceUsage"].as_object());
    let texts = usage.flat_map(|usage| usage.values().filter_map(Value::as_str));
    Ok(texts
        .filter(|text| !text.is_empty())
        .map(str::to_owned)
        .collect())
}

/// Makes a pod of a node with a claim that is made of the template.
fn claiming(name: &str, node: &cluster::Node, template: &str) -> Pod {
    let claims = json!([{"name": "device", "resourceClaimTemplateName": template}]);
    let main = Container::new("main").claim("device");
    Pod::new(name, &[main])
        .on(node)
        .with("resourceClaims", claims)
}

#[test]
fn pods_get_the_devices_that_the_scheduler_has_allocated_and_give_them_back() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "claims", &[])?;
    let _controller = Controller::start(cluster, &agents.space)?;
    let (space, site) = (&agents.space, &agents.sites[0]);
    let node = site.node.name();
    configure(&agents, "scheduled", Some("dra"))?;
    let class = "/apis/resource.k8s.io/v1/deviceclasses/scheduled.akri.sh";
    let class = eventually("there is a class", || cluster.get(class))?;
    ensure!(
        class["spec"]["extendedResourceName"] == "akri.sh/scheduled",
        "{class:#}"
    );
    eventually("both nodes offer their devices", || {
        for site in &agents.sites {
            let slices = slices(&agents, site.node.name())?;
            let devices = slices
                .iter()
                .filter_map(|one| one["spec"]["devices"].as_array());
            ensure!(devices.flatten().count() == 2, "{slices:#?}");
        }
        Ok(())
    })
    .with_context(|| space.state())?;
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": "one-device", "namespace": space.name()},
        "spec": {"spec": {"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": "scheduled.akri.sh"}}]}}},
    });
    cluster.apply(&template.to_string())?;
    for name in ["first", "second"] {
        space.run(&claiming(name, &site.node, "one-device"))?;
    }
    let mut seen = Vec::new();
    for name in ["first", "second"] {
        let log = space.wait_logs(name, "main", "DEBUG_ECHO_DESCRIPTION=")?;
        seen.extend(variable(&log, "DEBUG_ECHO_DESCRIPTION"));
    }
    seen.sort();
    assert_eq!(seen, ["one", "two"]);
    let held_now = held(&agents, "scheduled", node)?;
    let prefix = format!("R:{}:", space.name());
    ensure!(
        held_now.len() == 2 && held_now.iter().all(|text| text.starts_with(&prefix)),
        "{held_now:?}"
    );
    // No device is left: the next one waits, and does not fail.
    space.create(&claiming("third", &site.node, "one-device"))?;
    space.wait_unschedulable("third")?;
    space.delete("first")?;
    space.wait_running("third")?;
    space.delete("second")?;
    space.delete("third")?;
    eventually("all slots are free", || {
        let held = held(&agents, "scheduled", node)?;
        ensure!(held.is_empty(), "{held:?}");
        Ok(())
    })?;
    // As with a device plugin.
    let main = Container::new("main").device("akri.sh/scheduled", 1);
    space.run(&Pod::new("extended", &[main.clone()]).on(&site.node))?;
    space.wait_logs("extended", "main", "DEBUG_ECHO_DESCRIPTION=")?;
    ensure!(
        held(&agents, "scheduled", node)?
            .iter()
            .all(|text| text.starts_with(&prefix))
    );
    space.delete("extended")?;

    // Changed back, the kubelet gives the devices again.
    configure(&agents, "scheduled", Some("device-plugin"))?;
    site.node.wait_allocatable("akri.sh/scheduled", 2)?;
    eventually("the class and all devices of slices are gone", || {
        let class = cluster.get("/apis/resource.k8s.io/v1/deviceclasses")?;
        let classes = class["items"].as_array().context("no items")?;
        ensure!(
            classes
                .iter()
                .all(|one| one["metadata"]["name"] != "scheduled.akri.sh")
        );
        let slices = slices(&agents, node)?;
        let devices = slices
            .iter()
            .filter_map(|one| one["spec"]["devices"].as_array());
        ensure!(devices.flatten().count() == 0, "{slices:#?}");
        Ok(())
    })?;
    space.run(&Pod::new("plugged", &[main]).on(&site.node))?;
    space.wait_logs("plugged", "main", "DEBUG_ECHO_DESCRIPTION=")?;
    Ok(())
}
