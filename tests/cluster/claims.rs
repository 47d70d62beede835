//! Devices that the scheduler allocates: DeviceClasses, ResourceSlices, and claims of pods.

use std::collections::BTreeMap;
use std::fs;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Pod};
use leafhost_tests::program::source_tree;
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::brokers::Controller;
use crate::device::variable;

/// Upper bound for a pod with a claim to run: a kubelet may be denied a new claim for a moment, and retries after 90 seconds.
pub const PATIENCE: Duration = Duration::from_mins(4);

/// Applies a Configuration of two local devices of each node.
fn configure(agents: &Agents, name: &str, allocation: &str) -> Result<()> {
    apply(
        agents,
        (name, 1),
        allocation,
        "{shared: false, descriptions: [one, two]}",
    )
}

/// Applies a Configuration of that name and capacity, with details for the debugEcho handler.
fn apply(agents: &Agents, of: (&str, u32), allocation: &str, details: &str) -> Result<()> {
    agents
        .cluster
        .apply(&object(agents, of, allocation, details).to_string())
        .map(drop)
}

fn object(agents: &Agents, of: (&str, u32), allocation: &str, details: &str) -> Value {
    let (name, capacity) = of;
    json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": name, "namespace": agents.space.name(), "annotations": {"leafhost.dev/allocation": allocation}},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": details}, "capacity": capacity},
    })
}

/// Applies a ResourceClaimTemplate for a device of a Configuration.
fn template(agents: &Agents, name: &str, configuration: &str) -> Result<()> {
    let template = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate",
        "metadata": {"name": name, "namespace": agents.space.name()},
        "spec": {"spec": devices(configuration)},
    });
    agents.cluster.apply(&template.to_string()).map(drop)
}

/// Returns the spec of a claim for one device of a Configuration.
fn devices(configuration: &str) -> Value {
    let class = format!("{configuration}.akri.sh");
    json!({"devices": {"requests": [{"name": "device", "exactly": {"deviceClassName": class}}]}})
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

/// Returns the holders of the slots of a Configuration on a node.
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

/// Returns a pod for a node with a claim from the template.
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
    configure(&agents, "scheduled", "dra")?;
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
    let sample = "deploy/samples/cluster/dra.yaml";
    let check = ["apply", "--dry-run=server", "--namespace", space.name()];
    cluster.kubectl(&[&check[..], &["--filename", sample]].concat())?;
    template(&agents, "one-device", "scheduled")?;
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
    // No device is left: the next pod waits, and does not fail.
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
    // The pod requests the device as an extended resource, as with a device plugin.
    let main = Container::new("main").device("akri.sh/scheduled", 1);
    space.run(&Pod::new("extended", &[main.clone()]).on(&site.node))?;
    space.wait_logs("extended", "main", "DEBUG_ECHO_DESCRIPTION=")?;
    ensure!(
        held(&agents, "scheduled", node)?
            .iter()
            .all(|text| text.starts_with(&prefix))
    );
    space.delete("extended")?;

    // After the change back, the kubelet allocates the devices again.
    configure(&agents, "scheduled", "device-plugin")?;
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

#[test]
fn a_container_gets_the_devices_of_all_resources_that_it_names() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "claimed-resources", &[])?;
    let _controller = Controller::start(cluster, &agents.space)?;
    let (space, site) = (&agents.space, &agents.sites[0]);
    let names = ["lamp", "door", "desk"];
    let mut main = Container::new("main");
    for name in names {
        let details = format!("{{shared: false, descriptions: [{name}]}}");
        apply(&agents, (name, 1), "dra", &details)?;
        main = main.device(&format!("akri.sh/{name}"), 1);
    }
    eventually("there are classes and devices of all three", || {
        for name in names {
            cluster.get(&format!(
                "/apis/resource.k8s.io/v1/deviceclasses/{name}.akri.sh"
            ))?;
        }
        let slices = slices(&agents, site.node.name())?;
        let devices = slices
            .iter()
            .filter_map(|one| one["spec"]["devices"].as_array());
        ensure!(devices.flatten().count() == names.len(), "{slices:#?}");
        Ok(())
    })
    .with_context(|| space.state())?;
    space.create(&Pod::new("all", &[main]).on(&site.node))?;
    within(PATIENCE, "it has a device of each", || {
        let log = space.logs("all", "main")?;
        let lines = log.lines().filter(|line| line.contains("DESCRIPTION_"));
        let mut found: Vec<&str> = lines
            .filter_map(|line| Some(line.split_once('=')?.1.trim_matches('\'')))
            .collect();
        found.sort_unstable();
        ensure!(found == ["desk", "door", "lamp"], "{log}");
        Ok(())
    })
    .with_context(|| space.state())?;
    space.delete("all")?;
    Ok(())
}

#[test]
fn five_pods_on_two_nodes_share_a_camera_and_the_sixth_waits() -> Result<()> {
    match cluster::shared()? {
        Some(cluster) => share(cluster, &["5"]),
        None => Ok(()),
    }
}

/// Lets five pods share a camera. `slots` are the slot counts of its devices: one device with all, or one device per slot.
pub fn share(cluster: &'static Cluster, slots: &[&str]) -> Result<()> {
    let agents = Agents::start(cluster, "shared-claims", &[])?;
    let _controller = Controller::start(cluster, &agents.space)?;
    let space = &agents.space;
    apply(
        &agents,
        ("cameras", 5),
        "dra",
        "{shared: true, descriptions: [door]}",
    )?;
    let pool = format!("{}/cameras", space.name());
    eventually("the camera is offered to both nodes", || {
        let slice = slice_of(&agents, &pool)?;
        let terms = &slice["spec"]["nodeSelector"]["nodeSelectorTerms"][0];
        let nodes = &terms["matchExpressions"][0]["values"];
        ensure!(
            nodes.as_array().is_some_and(|nodes| nodes.len() == 2),
            "{slice:#}"
        );
        let devices = slice["spec"]["devices"].as_array().context("no devices")?;
        let found = devices
            .iter()
            .map(|one| one["capacity"]["slots"]["value"].as_str().unwrap_or("1"));
        ensure!(found.eq(slots.iter().copied()), "{slice:#}");
        Ok(())
    })
    .with_context(|| space.state())?;
    let node = |number: usize| &agents.sites[number % 2].node;
    let apply = ["apply", "--namespace", space.name(), "--filename", "-"];
    cluster.kubectl_with(&apply, &readme()?)?;
    let viewers = || {
        let path = format!("{}?labelSelector=app=viewers", space.collection("pods"));
        let list = cluster.get(&path)?;
        let mut phases: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for pod in list["items"].as_array().context("no items")? {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let pods = phases.entry(text(&pod["status"]["phase"])).or_default();
            pods.push(text(&pod["metadata"]["name"]));
        }
        Ok::<_, anyhow::Error>(phases)
    };
    let five_run = || {
        let phases = viewers()?;
        let count = |phase: &str| phases.get(phase).map_or(0, Vec::len);
        ensure!(
            count("Running") == 5 && count("Pending") == 1 && phases.len() == 2,
            "{phases:?}"
        );
        Ok(phases)
    };
    let phases = within(PATIENCE, "five run", five_run).with_context(|| space.state())?;
    ensure!(held(&agents, "cameras", node(0).name())?.len() == 5);
    let [waiting] = &phases["Pending"][..] else {
        bail!("{phases:?}");
    };
    space.wait_unschedulable(waiting)?;
    let before = &phases["Running"];
    space.delete(&before[0])?;
    // The waiting pod, or the pod by which the Deployment replaced the deleted one.
    within(PATIENCE, "one that did not run runs", || {
        let phases = five_run()?;
        let is_new = |pod: &String| !before.contains(pod);
        ensure!(
            phases["Running"].iter().filter(|pod| is_new(pod)).count() == 1,
            "{phases:?}"
        );
        Ok(())
    })?;
    let delete = [
        "delete",
        "deployment",
        "viewers",
        "--namespace",
        space.name(),
    ];
    cluster.kubectl(&delete)?;
    eventually("all slots are free", || {
        let held = held(&agents, "cameras", node(0).name())?;
        ensure!(held.is_empty(), "{held:?}");
        Ok(())
    })?;

    // A claim that pods on both nodes use is one share.
    let claim = json!({
        "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim",
        "metadata": {"name": "both", "namespace": space.name()}, "spec": devices("cameras"),
    });
    cluster.apply(&claim.to_string())?;
    let claims = json!([{"name": "device", "resourceClaimName": "both"}]);
    for number in 0..2 {
        let main = Container::new("main").claim("device");
        let pod = Pod::new(&format!("both-{number}"), &[main]).on(node(number));
        space.create(&pod.with("resourceClaims", claims.clone()))?;
    }
    for number in 0..2 {
        space.wait_running(&format!("both-{number}"))?;
        space.wait_logs(&format!("both-{number}"), "main", "DEBUG_ECHO_DESCRIPTION=")?;
    }
    let has_one = || {
        let held = held(&agents, "cameras", node(0).name())?;
        ensure!(held.len() == 1, "{held:?}");
        Ok(held)
    };
    let first = eventually("the claim has one slot", has_one)?;
    let is_first = first.iter().any(|text| text.ends_with(node(0).name()));
    let (ends, stays) = if is_first { (0, 1) } else { (1, 0) };
    space.delete(&format!("both-{ends}"))?;
    eventually("the other node has the slot", || {
        let held = has_one()?;
        ensure!(
            held.iter().all(|text| text.ends_with(node(stays).name())),
            "{held:?}"
        );
        Ok(())
    })?;
    space.delete(&format!("both-{stays}"))?;
    Ok(())
}

#[test]
fn a_claim_gets_the_last_slot_that_pods_with_device_plugins_have_left() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "last-slot", &[])?;
    let _controller = Controller::start(cluster, &agents.space)?;
    let (space, site) = (&agents.space, &agents.sites[0]);
    for details in [
        "{shared: true, descriptions: [door]}",
        "{shared: false, descriptions: [desk]}",
    ] {
        apply(&agents, ("mixed", 3), "device-plugin", details)?;
        let main = Container::new("main").device("akri.sh/mixed", 1);
        for name in ["first", "second"] {
            space.run(&Pod::new(name, std::slice::from_ref(&main)).on(&site.node))?;
        }
        apply(&agents, ("mixed", 3), "dra", details)?;
        template(&agents, "mixed", "mixed")?;
        space.run(&claiming("third", &site.node, "mixed"))?;
        for name in ["first", "second", "third"] {
            space.delete(name)?;
        }
        let path = format!(
            "/apis/akri.sh/v0/namespaces/{}/configurations/mixed",
            space.name()
        );
        cluster.api().delete(&path)?;
        eventually("the Instances are gone", || {
            ensure!(agents.instances("mixed")?.is_empty());
            Ok(())
        })?;
    }
    Ok(())
}

#[test]
fn brokers_get_their_device_by_a_claim_and_by_device_plugins_once_that_is_changed() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let agents = Agents::start(cluster, "claiming-brokers", &[])?;
    let _controller = Controller::start(cluster, &agents.space)?;
    let (space, node) = (&agents.space, agents.sites[0].node.name());
    let main = Container::new("main").device("{{PLACEHOLDER}}", 1);
    let pod = Pod::new("template", &[main]).spec().clone();
    let configure = |allocation: &str| {
        let details = "{shared: true, descriptions: [door]}";
        let mut object = object(&agents, ("watched", 2), allocation, details);
        object["spec"]["brokerSpec"] = json!({"brokerPodSpec": pod});
        cluster.apply(&object.to_string()).map(drop)
    };
    let brokers = |is_claim: bool| {
        let path = format!(
            "{}?labelSelector=akri.sh/configuration=watched",
            space.collection("pods")
        );
        let list = cluster.get(&path)?;
        let pods = list["items"].as_array().context("no items")?;
        ensure!(pods.len() == 2, "{} pods", pods.len());
        for pod in pods {
            ensure!(pod["status"]["phase"] == "Running", "{:#}", pod["status"]);
            ensure!(
                pod["spec"]["resourceClaims"].is_array() == is_claim,
                "{:#}",
                pod["spec"]
            );
        }
        let held = held(&agents, "watched", node)?;
        let are_claims = held.iter().all(|text| text.starts_with("R:") == is_claim);
        ensure!(held.len() == 2 && are_claims, "{held:?}");
        Ok(())
    };
    configure("dra")?;
    within(PATIENCE, "both nodes have a broker with a claim", || {
        brokers(true)
    })
    .with_context(|| space.state())?;
    let configuration = format!(
        "/apis/akri.sh/v0/namespaces/{}/configurations/watched",
        space.name()
    );
    eventually("the status says that there is a class", || {
        let object = cluster.get(&configuration)?;
        let conditions = object["status"]["conditions"].as_array().context("none")?;
        let is_made = |one: &&Value| one["type"] == "DeviceClassMade" && one["status"] == "True";
        ensure!(
            conditions.iter().any(|one| is_made(&one)),
            "{conditions:#?}"
        );
        Ok(())
    })?;
    configure("device-plugin")?;
    eventually("both nodes have a broker without a claim", || {
        brokers(false)
    })
    .with_context(|| space.state())?;
    Ok(())
}

/// Returns the manifests of the README, with the image of the tests.
fn readme() -> Result<String> {
    let text = fs::read_to_string(source_tree().join("README.md"))?;
    let heading = "\n### Five pods share a camera, the sixth waits\n";
    let (_, text) = text.split_once(heading).context(heading)?;
    let (_, text) = text.split_once("```yaml\n").context("no manifests")?;
    let (manifests, _) = text.split_once("```").context("they do not end")?;
    Ok(manifests.replace("busybox:1", cluster::IMAGE))
}

/// Returns the slice of a pool that has one.
fn slice_of(agents: &Agents, pool: &str) -> Result<Value> {
    let list = agents
        .cluster
        .get("/apis/resource.k8s.io/v1/resourceslices")?;
    let all = list["items"].as_array().context("no items")?.iter();
    let mut own = all.filter(|one| one["spec"]["pool"]["name"] == pool);
    own.next().cloned().with_context(|| format!("{list:#}"))
}
