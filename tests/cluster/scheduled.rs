//! Pods that describe their devices: a scheduler and its extender choose them, and the agents of two nodes give each container exactly these.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Node, Pod};
use leafhost_tests::program::{leafhost, source_tree};
use leafhost_tests::wait::eventually;
use serde::Deserialize as _;
use serde_json::{Value, json};

use crate::agents::{Agents, kubeconfig};

/// The resource of tickets, and the annotation of pods.
const DEVICES: &str = "leafhost.dev/devices";
const ALLOCATED: &str = "leafhost.dev/allocated-devices";
/// What the agents are started with.
pub const AGENT: [&str; 2] = ["--tickets", "64"];
/// How many GPUs each node has.
const GPUS: usize = 5;

/// A kube-scheduler with its extender, which has the rights that the chart gives it. Both end when this is dropped.
pub struct Scheduling {
    extender: Child,
    scheduler: Child,
    folder: tempfile::TempDir,
    /// Where the extender listens.
    address: String,
    cluster: &'static Cluster,
    /// What `spec.schedulerName` of its pods says, and the namespace of its account.
    name: String,
}

impl Scheduling {
    pub fn start(cluster: &'static Cluster, space: &str) -> Result<Self> {
        let chart = source_tree().join("deploy/chart");
        let chart = chart.to_string_lossy();
        let template = ["template", space, &chart, "--namespace", space];
        let values = format!("scheduler.enabled=true,scheduler.name={space}");
        let render = |part: &str| {
            let part = format!("templates/{part}.yaml");
            let only = [
                "--set",
                &values,
                "--kube-version",
                "1.37.0",
                "--show-only",
                &part,
            ];
            cluster.helm(&[&template[..], &only].concat())
        };
        // What its account and those of the agents may write, too.
        for part in ["policies", "policies-scheduler"] {
            cluster.apply(&render(part)?)?;
        }
        let rendered = render("scheduler")?;
        let mut config = None;
        for document in serde_yaml_ng::Deserializer::from_str(&rendered) {
            let object = Value::deserialize(document)?;
            if let Some(text) = object["data"]["config.yaml"].as_str() {
                config = Some(text.to_owned());
            }
            if !object.is_null() && object["kind"] != "Deployment" {
                cluster.apply(&object.to_string())?;
            }
        }
        let folder = tempfile::tempdir()?;
        let own = folder.path().join("kubeconfig");
        let account = format!("{space}-leafhost-scheduler");
        let create = ["create", "token", &account, "--namespace", space];
        fs::write(&own, kubeconfig(cluster, &create)?)?;
        let (extender, address) = extender(folder.path(), space, "127.0.0.1:0")?;
        // As in the chart, but for what is of a pod there.
        let config: Value = serde_yaml_ng::from_str(&config.context("no configuration")?)?;
        let mut config = config;
        config["extenders"][0]["urlPrefix"] = json!(format!("http://{address}"));
        config["leaderElection"] = json!({"leaderElect": false});
        config["clientConnection"] = json!({"kubeconfig": own});
        let path = folder.path().join("scheduler.yaml");
        fs::write(&path, config.to_string())?;
        let log = File::create(folder.path().join("scheduler.log"))?;
        let scheduler = Command::new(cluster.programs().join("kube-scheduler"))
            .arg(format!("--config={}", path.display()))
            .args(["--secure-port=0", "--v=2"])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start kube-scheduler")?;
        Ok(Self {
            extender,
            scheduler,
            folder,
            address,
            cluster,
            name: space.to_owned(),
        })
    }

    /// Kills the extender, and starts another one in its place after a while.
    pub fn replace_extender(&mut self, pause: Duration) -> Result<()> {
        self.extender.kill()?;
        self.extender.wait()?;
        wait(pause);
        (self.extender, _) = extender(self.folder.path(), &self.name, &self.address)?;
        Ok(())
    }

    /// The ends of both logs.
    pub fn log(&self) -> String {
        let tail = |name: &str| {
            let text = fs::read_to_string(self.folder.path().join(name)).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            lines[lines.len().saturating_sub(40)..].join("\n")
        };
        format!(
            "extender:\n{}\nscheduler:\n{}",
            tail("extender.log"),
            tail("scheduler.log")
        )
    }

    /// A pod whose container `main` asks for these devices, on one of the nodes if one is named.
    pub fn pod(&self, name: &str, node: Option<&Node>, requests: &Value) -> Pod {
        let main = Container::new("main").device(DEVICES, 1);
        let text = json!({"main": {"requests": requests}}).to_string();
        let pod = Pod::new(name, &[main]).annotated(DEVICES, &text);
        let pod = pod.with("schedulerName", json!(self.name));
        match node {
            Some(node) => pod.on(node),
            None => pod,
        }
    }
}

/// Starts an extender with the kubeconfig in the folder; returns where it listens, too.
fn extender(folder: &Path, scheduler: &str, listen: &str) -> Result<(Child, String)> {
    let path = folder.join("extender.log");
    let log = File::options().create(true).append(true).open(&path)?;
    let before = fs::read_to_string(&path)?.len();
    let child = Command::new(leafhost()?)
        .args([
            "scheduler",
            "--listen",
            listen,
            "--scheduler-name",
            scheduler,
        ])
        .args(["--log-format", "text", "--log-level", "debug"])
        .env("KUBECONFIG", folder.join("kubeconfig"))
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the extender")?;
    let address = eventually("the extender says where it listens", || {
        let log = fs::read_to_string(&path)?;
        let log = log.get(before..).unwrap_or_default();
        let (_, address) = log.split_once("address=").context("it says nothing")?;
        let address = address.split_whitespace().next().context("no address")?;
        Ok(address.to_owned())
    })?;
    Ok((child, address))
}

impl Drop for Scheduling {
    fn drop(&mut self) {
        for child in [&mut self.scheduler, &mut self.extender] {
            let _ = child.kill();
            let _ = child.wait();
        }
        let name = format!("{}-leafhost-scheduler", self.name);
        let more = [
            format!("{name}-kube-scheduler"),
            format!("{name}-volume-scheduler"),
        ];
        let delete = [
            "delete",
            "clusterrole,clusterrolebinding",
            "--ignore-not-found",
        ];
        let _ = self.cluster.kubectl(&[&delete[..], &[&*name]].concat());
        for name in &more {
            let delete = ["delete", "clusterrolebinding", "--ignore-not-found", name];
            let _ = self.cluster.kubectl(&delete);
        }
        let kinds = "validatingadmissionpolicy,validatingadmissionpolicybinding";
        let release = format!("app.kubernetes.io/instance={}", self.name);
        let delete = ["delete", kinds, "--selector", &release];
        let _ = self.cluster.kubectl(&delete);
    }
}

/// Starts agents that offer tickets, and a scheduler; `configuration` has GPUs of each node.
pub fn start(
    cluster: &'static Cluster,
    name: &str,
    configuration: &str,
) -> Result<(Agents, Scheduling)> {
    let agents = Agents::start(cluster, name, &AGENT)?;
    for site in &agents.sites {
        site.home.add_handler("mock-gpu")?;
    }
    let scheduling = Scheduling::start(cluster, agents.space.name())?;
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": configuration, "namespace": agents.space.name()},
        "spec": {"discoveryHandler": {"name": "mock-gpu", "discoveryDetails": format!("count: {GPUS}")}, "capacity": 1},
    });
    cluster.apply(&object.to_string())?;
    eventually("both nodes have their GPUs and offer tickets", || {
        let found = agents.instances(configuration)?.len();
        ensure!(found == 2 * GPUS, "{found} GPUs");
        Ok(())
    })
    .with_context(|| agents.space.state())?;
    for site in &agents.sites {
        site.node.wait_allocatable(DEVICES, 64)?;
    }
    Ok((agents, scheduling))
}

/// Asks for GPUs of a Configuration with one of these indices.
pub fn of(name: &str, configuration: &str, count: usize, indices: &[usize]) -> Value {
    let indices: Vec<String> = indices.iter().map(ToString::to_string).collect();
    let expression = format!(
        "device.attributes[\"leafhost.dev\"].index in [{}]",
        indices.join(", ")
    );
    json!({"name": name, "deviceClassName": format!("{configuration}.akri.sh"), "count": count,
        "selectors": [{"cel": {"expression": expression}}]})
}

pub fn exactly(name: &str, mut way: Value) -> Value {
    if let Some(fields) = way.as_object_mut() {
        fields.remove("name");
    }
    json!({"name": name, "exactly": way})
}

/// Returns the numbers of the GPUs that a container has, as its variables say.
fn indices(log: &str) -> BTreeSet<usize> {
    let lines = log.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(name, _)| name.starts_with("MOCK_GPU_INDEX_"))
        .filter_map(|(_, value)| value.trim_matches('\'').parse().ok())
        .collect()
}

/// Returns what the scheduler has said of a pod: Instances by container.
fn allocated(space: &Namespace<'_>, pod: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let pod = space.pod(pod)?;
    let text = pod["metadata"]["annotations"][ALLOCATED].as_str();
    Ok(serde_json::from_str(text.context("nothing is allocated")?)?)
}

/// Checks that a running pod has the GPUs that the scheduler has chosen; returns their numbers and Instances.
pub fn given(
    cluster: &Cluster,
    space: &Namespace<'_>,
    pod: &str,
) -> Result<(BTreeSet<usize>, Vec<String>)> {
    let log = space.wait_logs(pod, "main", "PATH=")?;
    let has = indices(&log);
    let mut chosen = BTreeSet::new();
    let instances = allocated(space, pod)?.remove("main").unwrap_or_default();
    for instance in &instances {
        let path = format!(
            "/apis/akri.sh/v0/namespaces/{}/instances/{instance}",
            space.name()
        );
        let object = cluster.get(&path)?;
        let index = object["spec"]["leafhost"]["attributes"]["index"]["int"].as_u64();
        chosen.insert(usize::try_from(index.context("no index")?)?);
    }
    ensure!(
        has == chosen,
        "{pod} has {has:?}, chosen are {chosen:?}\n{log}"
    );
    Ok((has, instances))
}

/// Waits until all slots of a Configuration are free.
pub fn until_free(agents: &Agents, configuration: &str) -> Result<()> {
    eventually("all slots are free", || {
        for instance in agents.instances(configuration)? {
            let usage = instance["spec"]["deviceUsage"].as_object().cloned();
            let used: Vec<_> = usage
                .into_iter()
                .flatten()
                .filter(|(_, by)| by != "")
                .collect();
            ensure!(used.is_empty(), "{used:?}");
            let reserved = &instance["spec"]["leafhost"]["reserved"];
            let is_empty = reserved.as_object().is_none_or(serde_json::Map::is_empty);
            ensure!(is_empty, "{reserved:#}");
        }
        Ok(())
    })
    .with_context(|| agents.space.state())
}

#[test]
fn two_pods_get_what_both_can_have_and_the_second_waits_where_that_is_impossible() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let (agents, scheduling) = start(cluster, "scheduled", "chosen")?;
    let (space, node) = (&agents.space, &agents.sites[0].node);
    // Three of A, B, C, or else C and D; and D and E.
    let ways = [
        of("three", "chosen", 3, &[0, 1, 2]),
        of("two", "chosen", 2, &[2, 3]),
    ];
    let first = json!([{"name": "gpus", "firstAvailable": ways}]);
    let second = json!([exactly("gpus", of("", "chosen", 2, &[3, 4]))]);
    for round in 0..4 {
        let names = [format!("first-{round}"), format!("second-{round}")];
        let pods = [
            scheduling.pod(&names[0], Some(node), &first),
            scheduling.pod(&names[1], Some(node), &second),
        ];
        // In both orders.
        for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            space.create(&pods[index])?;
        }
        for (name, expected) in names.iter().zip([&[0, 1, 2][..], &[3, 4]]) {
            space.wait_running(name).with_context(|| scheduling.log())?;
            let (has, _) = given(cluster, space, name)?;
            ensure!(
                has == expected.iter().copied().collect(),
                "{name} has {has:?}"
            );
        }
        for name in &names {
            space.delete(name)?;
        }
        until_free(&agents, "chosen")?;
    }
    // Somebody has A: the first one takes C and D, and the second one waits for its end.
    let holder = json!([exactly("gpu", of("", "chosen", 1, &[0]))]);
    for (name, requests, expected) in [("holder", &holder, &[0][..]), ("other", &first, &[2, 3])] {
        space.create(&scheduling.pod(name, Some(node), requests))?;
        space.wait_running(name).with_context(|| scheduling.log())?;
        let (has, _) = given(cluster, space, name)?;
        ensure!(
            has == expected.iter().copied().collect(),
            "{name} has {has:?}"
        );
    }
    space.create(&scheduling.pod("late", Some(node), &second))?;
    space.wait_unschedulable("late")?;
    let waiting = space.pod("late")?;
    let text = waiting["status"]["conditions"].to_string();
    ensure!(text.contains("are in use"), "{text}");
    space.delete("other")?;
    let begun = Instant::now();
    space
        .wait_running("late")
        .with_context(|| scheduling.log())?;
    println!("the next pod runs {:?} after the deletion", begun.elapsed());
    ensure!(given(cluster, space, "late")?.0 == [3, 4].into());
    Ok(())
}

#[test]
fn many_pods_at_once_each_get_the_devices_that_were_chosen_for_them() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let (agents, scheduling) = start(cluster, "scheduled-many", "each")?;
    let space = &agents.space;
    for round in 0..2 {
        let mut names = Vec::new();
        for (number, site) in agents.sites.iter().enumerate() {
            for index in 0..GPUS {
                let name = format!("gpu-{round}-{number}-{index}");
                let requests = json!([exactly("gpu", of("", "each", 1, &[index]))]);
                let pod = scheduling.pod(&name, Some(&site.node), &requests);
                space.create(&pod)?;
                names.push((name, index));
            }
        }
        for (name, index) in &names {
            space.wait_running(name).with_context(|| scheduling.log())?;
            let (has, _) = given(cluster, space, name)?;
            ensure!(has == [*index].into(), "{name} has {has:?}");
        }
        for (name, _) in &names {
            space.delete(name)?;
        }
        until_free(&agents, "each")?;
    }
    init_containers(&agents, &scheduling)?;
    share(&agents, &scheduling)
}

/// What an init container had is used again by the app container that it fits, and a pod whose init container alone asks gets its own, too.
fn init_containers(agents: &Agents, scheduling: &Scheduling) -> Result<()> {
    let (space, node) = (&agents.space, &agents.sites[0].node);
    let asks = |name: &str| Container::new(name).device(DEVICES, 1);
    let one = |indices: &[usize]| json!({"requests": [exactly("gpu", of("", "each", 1, indices))]});
    let both = json!({"first": one(&[3]), "main": one(&[2, 3])});
    let pods = [
        ("both", asks("main"), both),
        ("alone", Container::new("main"), json!({"first": one(&[4])})),
    ];
    for (name, main, text) in pods {
        let first = asks("first").script("env");
        let pod = Pod::new(name, &[main]).init(&[first]);
        let pod = pod.annotated(DEVICES, &text.to_string()).on(node);
        space.create(&pod.with("schedulerName", json!(scheduling.name)))?;
    }
    for (name, first, main) in [("both", &[3][..], &[3][..]), ("alone", &[4], &[])] {
        space.wait_running(name).with_context(|| scheduling.log())?;
        let has = |container: &str| Ok::<_, anyhow::Error>(indices(&space.logs(name, container)?));
        ensure!(has("first")? == first.iter().copied().collect(), "{name}");
        ensure!(has("main")? == main.iter().copied().collect(), "{name}");
    }
    for name in ["both", "alone"] {
        space.delete(name)?;
    }
    until_free(agents, "each")
}

/// Of a device of capacity 5 five pods have a slot, on whichever nodes; the others wait, none fails, and each end starts one more.
fn share(agents: &Agents, scheduling: &Scheduling) -> Result<()> {
    let space = &agents.space;
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": "doors", "namespace": space.name()},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "{shared: true, descriptions: [door]}"}, "capacity": 5},
    });
    agents.cluster.apply(&object.to_string())?;
    eventually("both nodes see the device", || {
        let found = agents.instances("doors")?;
        let nodes = found.first().map(|one| one["spec"]["nodes"].clone());
        let nodes = nodes.context("there is no Instance")?;
        ensure!(
            nodes.as_array().is_some_and(|nodes| nodes.len() == 2),
            "{nodes}"
        );
        Ok(())
    })?;
    let requests = json!([{"name": "door", "exactly": {"deviceClassName": "doors"}}]);
    for number in 0..8 {
        space.create(&scheduling.pod(&format!("door-{number}"), None, &requests))?;
    }
    let phases = || {
        let mut all: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let list = agents.cluster.get(&space.collection("pods"))?;
        for pod in list["items"].as_array().context("no items")? {
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let pods = all.entry(text(&pod["status"]["phase"])).or_default();
            pods.push(text(&pod["metadata"]["name"]));
        }
        Ok::<_, anyhow::Error>(all)
    };
    let until = |running: usize, pending: usize| {
        eventually("five run and the others wait", || {
            let all = phases()?;
            let count = |phase: &str| all.get(phase).map_or(0, Vec::len);
            let is_so = count("Running") == running && count("Pending") == pending;
            ensure!(
                is_so && all.values().flatten().count() == running + pending,
                "{all:?}"
            );
            Ok(all)
        })
        .with_context(|| scheduling.log())
    };
    for waiting in (0..3).rev() {
        let all = until(5, waiting + 1)?;
        let first = all["Running"].first().context("none runs")?;
        space.delete(first)?;
        let begun = Instant::now();
        until(5, waiting)?;
        println!(
            "one more runs {:?} after the end of another",
            begun.elapsed()
        );
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "pods and what kills them take their time"
)]
pub fn wait(duration: Duration) {
    std::thread::sleep(duration);
}
