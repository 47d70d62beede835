//! Claims that pods of other drivers use, on our mock GPUs: each container has exactly the devices that the scheduler has allocated to it.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, IMAGE};
use leafhost_tests::wait::{eventually, within};
use serde_json::{Value, json};

use crate::agents::Agents;
use crate::brokers::Controller;
use crate::claims::PATIENCE;

/// Number of GPUs on each of the two nodes.
const GPUS: usize = 12;

/// Starts agents with mock GPUs that the scheduler allocates.
pub fn start(cluster: &'static Cluster, name: &str) -> Result<(Agents, Controller)> {
    let agents = Agents::start(cluster, name, &[])?;
    let controller = Controller::start(cluster, &agents.space)?;
    for site in &agents.sites {
        site.home.add_handler("mock-gpu")?;
    }
    let configuration = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration",
        "metadata": {"name": "gpu", "namespace": agents.space.name(), "annotations": {"leafhost.dev/allocation": "dra"}},
        "spec": {"discoveryHandler": {"name": "mock-gpu", "discoveryDetails": format!("count: {GPUS}")}, "capacity": 1},
    });
    cluster.apply(&configuration.to_string())?;
    eventually("both nodes offer their GPUs", || {
        let gpus = gpus(&agents)?;
        ensure!(gpus.len() == 2 * GPUS, "{} GPUs", gpus.len());
        cluster.get("/apis/resource.k8s.io/v1/deviceclasses/gpu.akri.sh")
    })
    .with_context(|| agents.space.state())?;
    Ok((agents, controller))
}

/// Returns pool, device and UUID of all GPUs in ResourceSlices.
fn gpus(agents: &Agents) -> Result<Vec<(String, String, String)>> {
    let slices = agents
        .cluster
        .get("/apis/resource.k8s.io/v1/resourceslices")?;
    let mut gpus = Vec::new();
    for slice in slices["items"].as_array().context("no items")? {
        let pool = text(&slice["spec"]["pool"]["name"]);
        for device in slice["spec"]["devices"].as_array().into_iter().flatten() {
            let attribute = |name: &str| text(&device["attributes"][name]["string"]);
            if attribute("namespace") == agents.space.name() && attribute("configuration") == "gpu"
            {
                gpus.push((pool.clone(), text(&device["name"]), attribute("uuid")));
            }
        }
    }
    Ok(gpus)
}

pub fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// Pod of a namespace, with its logs.
pub struct Seen<'a> {
    agents: &'a Agents,
    namespace: &'a str,
    pod: Value,
}

impl Seen<'_> {
    /// Returns the names of the claims that a container uses, each with its request, if the container names one.
    fn claims(&self, container: &Value) -> Result<Vec<(String, Option<String>)>> {
        let (spec, status) = (&self.pod["spec"], &self.pod["status"]);
        let mut claims = Vec::new();
        for used in container["resources"]["claims"]
            .as_array()
            .into_iter()
            .flatten()
        {
            let find = |list: &Value| {
                let mut all = list.as_array().into_iter().flatten();
                all.find(|one| one["name"] == used["name"])
                    .cloned()
                    .unwrap_or_default()
            };
            let named = text(&find(&spec["resourceClaims"])["resourceClaimName"]);
            let made = text(&find(&status["resourceClaimStatuses"])["resourceClaimName"]);
            let name = if named.is_empty() { made } else { named };
            ensure!(!name.is_empty(), "no claim: {status:#}");
            claims.push((name, used["request"].as_str().map(str::to_owned)));
        }
        let extended = &status["extendedResourceClaimStatus"];
        for one in extended["requestMappings"].as_array().into_iter().flatten() {
            if one["containerName"] == container["name"] {
                let claim = text(&extended["resourceClaimName"]);
                claims.push((claim, Some(text(&one["requestName"]))));
            }
        }
        Ok(claims)
    }

    /// Returns the UUIDs of the GPUs that the scheduler has allocated to a container.
    fn allocated(&self, container: &Value) -> Result<BTreeSet<String>> {
        let gpus = gpus(self.agents)?;
        let mut uuids = BTreeSet::new();
        for (claim, request) in self.claims(container)? {
            let path = format!(
                "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{claim}",
                self.namespace
            );
            let claim = self.agents.cluster.get(&path)?;
            let results = claim["status"]["allocation"]["devices"]["results"]
                .as_array()
                .cloned();
            for result in results.context("nothing is allocated")? {
                let of = text(&result["request"]);
                let of = of.split('/').next().unwrap_or_default();
                if request.as_deref().is_none_or(|request| request == of) {
                    let is_it = |gpu: &&(String, String, String)| {
                        (&*gpu.0, &*gpu.1) == (&*text(&result["pool"]), &*text(&result["device"]))
                    };
                    let gpu = gpus
                        .iter()
                        .find(is_it)
                        .with_context(|| format!("{result:#}"))?;
                    uuids.insert(gpu.2.clone());
                }
            }
        }
        Ok(uuids)
    }

    /// Returns the log of a container.
    fn log(&self, container: &Value) -> Result<String> {
        let pod = text(&self.pod["metadata"]["name"]);
        let name = text(&container["name"]);
        let path = format!(
            "/api/v1/namespaces/{}/pods/{pod}/log?container={name}",
            self.namespace
        );
        self.agents.cluster.api().text(&path)
    }

    /// Checks that each container has the GPUs that were allocated to it, and no others; returns the pod's number of GPUs.
    pub fn check(&self) -> Result<usize> {
        let containers =
            ["containers", "initContainers"].map(|list| self.pod["spec"][list].as_array().cloned());
        let mut all = BTreeSet::new();
        for container in containers.into_iter().flatten().flatten() {
            let expected = self.allocated(&container)?;
            let log = self.log(&container)?;
            let found: BTreeSet<String> = log.lines().filter_map(uuid).collect();
            ensure!(
                found == expected,
                "{}: has {found:?}, allocated are {expected:?}",
                container["name"]
            );
            all.extend(found);
        }
        Ok(all.len())
    }
}

/// Returns the UUID of a GPU from a line of variables. Each GPU has a variable with its own suffix.
fn uuid(line: &str) -> Option<String> {
    let line = line.strip_prefix("export ").unwrap_or(line);
    let (name, value) = line.split_once('=')?;
    let value = value.trim_matches(['\'', '"']);
    name.starts_with("MOCK_GPU_UUID_").then(|| value.to_owned())
}

/// Waits until a pod runs or has succeeded, and its containers have printed their variables.
pub fn until_printed<'a>(agents: &'a Agents, namespace: &'a str, pod: &str) -> Result<Seen<'a>> {
    let path = format!("/api/v1/namespaces/{namespace}/pods/{pod}");
    within(PATIENCE, &format!("pod {pod} runs"), || {
        let pod = agents.cluster.get(&path)?;
        let phase = text(&pod["status"]["phase"]);
        ensure!(
            phase == "Running" || phase == "Succeeded",
            "{:#}",
            pod["status"]
        );
        let seen = Seen {
            agents,
            namespace,
            pod,
        };
        let containers = seen.pod["spec"]["containers"].as_array().cloned();
        for container in containers.context("no containers")? {
            ensure!(
                seen.log(&container)?.contains("PATH="),
                "nothing is printed yet"
            );
        }
        Ok(seen)
    })
}

/// Returns the manifests of a text, with the image of the tests.
pub fn manifests(text: &str) -> Result<Vec<Value>> {
    let mut all = Vec::new();
    for mut object in serde_saphyr::from_multiple::<Value>(text)? {
        for list in ["containers", "initContainers"] {
            let containers = object.pointer_mut(&format!("/spec/{list}"));
            for container in containers
                .and_then(Value::as_array_mut)
                .into_iter()
                .flatten()
            {
                container["image"] = json!(IMAGE);
                container["imagePullPolicy"] = json!("Never");
                if container["command"].is_null() {
                    container["command"] =
                        json!(["sh", "-c", "trap exit TERM; env; sleep 2147483647 & wait"]);
                }
            }
        }
        if object["kind"] == "Pod" {
            object["spec"]["terminationGracePeriodSeconds"] = json!(1);
        }
        if !object.is_null() {
            all.push(object);
        }
    }
    Ok(all)
}

#[test]
fn each_container_has_the_gpus_that_were_allocated_to_it() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let (agents, _controller) = start(cluster, "claim-cases")?;
    let space = agents.space.name();
    cluster.kubectl(&[
        "label",
        "namespace",
        space,
        "resource.kubernetes.io/admin-access=true",
    ])?;
    let apply = ["apply", "--namespace", space, "--filename", "-"];
    let objects = manifests(include_str!("claim_cases/cases.yaml"))?;
    // The pod with admin access sees the devices that the others have.
    let (admin, others): (Vec<_>, Vec<_>) = objects
        .iter()
        .filter(|one| one["kind"] == "Pod")
        .partition(|pod| pod["metadata"]["name"] == "admin");
    for object in objects
        .iter()
        .filter(|one| one["kind"] != "Pod")
        .chain(others.iter().copied())
    {
        cluster.kubectl_with(&apply, &object.to_string())?;
    }
    let expected = [
        ("own-one", 1),
        ("own-two", 1),
        ("by-request", 2),
        ("among-containers", 1),
        ("among-pods-one", 1),
        ("among-pods-two", 1),
        ("by-attributes", 1),
        ("by-alternative", 1),
        ("by-resource", 2),
        ("by-resource-each", 4),
        ("by-class", 1),
        ("by-both", 2),
        ("parameters", 1),
    ];
    ensure!(others.len() == expected.len());
    for (pod, count) in expected {
        let seen = until_printed(&agents, space, pod).with_context(|| agents.space.state())?;
        let found = seen.check().with_context(|| pod.to_owned())?;
        ensure!(found == count, "{pod} has {found} GPUs");
    }
    let log = |pod: &str| agents.space.logs(pod, "main");
    ensure!(log("by-attributes")?.contains("MOCK_GPU_INDEX=5"));
    ensure!(log("parameters")?.contains("SHARING=time-slicing"));
    for pod in admin {
        cluster.kubectl_with(&apply, &pod.to_string())?;
    }
    let seen = until_printed(&agents, space, "admin").with_context(|| agents.space.state())?;
    ensure!(seen.check()? == GPUS, "it has others than all of its node");
    Ok(())
}

#[test]
fn parameters_of_another_driver_are_refused_with_their_kind() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let (agents, _controller) = start(cluster, "claim-parameters")?;
    let space = &agents.space;
    for (name, parameters, said) in [
        (
            "other-kind",
            json!({"apiVersion": "gpu.resource.example.com/v1alpha1", "kind": "GpuConfig", "sharing": {"strategy": "TimeSlicing"}}),
            "GpuConfig are not known",
        ),
        (
            "dangerous",
            json!({"apiVersion": "leafhost.dev/v1alpha1", "kind": "DeviceParameters", "properties": {"LD_PRELOAD": "/tmp/x.so"}}),
            "properties.LD_PRELOAD may not be set",
        ),
    ] {
        let claim = json!({
            "apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name, "namespace": space.name()},
            "spec": {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.akri.sh"}}],
                "config": [{"opaque": {"driver": "leafhost.dev", "parameters": parameters}}]}},
        });
        cluster.apply(&claim.to_string())?;
        let pod = json!({
            "apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": space.name()},
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": [{"name": "main", "resources": {"claims": [{"name": "gpu"}]}}]},
        });
        for pod in manifests(&pod.to_string())? {
            cluster.apply(&pod.to_string())?;
        }
        within(PATIENCE, &format!("an event of {name} says why"), || {
            let selector = format!("fieldSelector=involvedObject.name={name}");
            let events = cluster.get(&format!(
                "/api/v1/namespaces/{}/events?{selector}",
                space.name()
            ))?;
            let events = events["items"].as_array().cloned().unwrap_or_default();
            let told: Vec<String> = events.iter().map(|one| text(&one["message"])).collect();
            ensure!(
                told.iter().any(|message| message.contains(said)),
                "{told:#?}"
            );
            Ok(())
        })
        .with_context(|| space.state())?;
        space.delete(name)?;
    }
    Ok(())
}
