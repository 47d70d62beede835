//! Pods that describe their devices: a scheduler and its extender choose them, and the agents of two nodes allocate exactly these to each container.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Pod};
use leafhost_tests::scheduling::{AGENT, ALLOCATED, DEVICES, Scheduling, exactly, indices, of};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::agents::Agents;

/// Number of GPUs on each node.
const GPUS: usize = 5;

/// Starts agents that offer tickets, and a scheduler; `configuration` has GPUs of each node.
pub fn start(
    cluster: &'static Cluster,
    name: &str,
    configuration: &str,
    arguments: &[&str],
) -> Result<(Agents, Scheduling)> {
    start_with(cluster, name, configuration, arguments, Scheduling::start)
}

/// Starts agents as [`start`] does, with a scheduler that `scheduling` starts.
pub fn start_with(
    cluster: &'static Cluster,
    name: &str,
    configuration: &str,
    arguments: &[&str],
    scheduling: fn(&'static Cluster, &str, &[&str]) -> Result<Scheduling>,
) -> Result<(Agents, Scheduling)> {
    let agents = Agents::start(cluster, name, arguments)?;
    for site in &agents.sites {
        site.home.add_handler("mock-gpu")?;
    }
    let scheduling = scheduling(cluster, agents.space.name(), arguments)?;
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

/// Returns the scheduler's choice for a pod: Instances by container.
fn allocated(space: &Namespace<'_>, pod: &str) -> Result<BTreeMap<String, Vec<String>>> {
    let pod = space.pod(pod)?;
    let text = pod["metadata"]["annotations"][ALLOCATED].as_str();
    Ok(serde_json::from_str(text.context("nothing is allocated")?)?)
}

/// Checks that a running pod has the GPUs that the scheduler has chosen; returns their indices and Instances.
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
            ensure!(used.is_empty(), "{used:?}, {}", instance["status"]);
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
    let (agents, scheduling) = start(cluster, "scheduled", "chosen", &AGENT)?;
    let (space, node) = (&agents.space, &agents.sites[0].node);
    // The first pod wants A, B and C, or else C and D; the second one wants D and E.
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
    // Another pod has A: the first one takes C and D, and the second one waits for its end.
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
    let (agents, scheduling) = start(cluster, "scheduled-many", "each", &AGENT)?;
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

/// Checks that the app container reuses the device of an init container if it fits, and that a pod in which only an init container asks gets its own.
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
        space.create(&pod.with("schedulerName", json!(scheduling.name())))?;
    }
    for (name, first, main) in [("both", &[3][..], &[3][..]), ("alone", &[4], &[])] {
        space.wait_running(name).with_context(|| scheduling.log())?;
        for (container, expected) in [("first", first), ("main", main)] {
            let log = space.wait_logs(name, container, "PATH=")?;
            let has = indices(&log);
            ensure!(
                has == expected.iter().copied().collect(),
                "{container} of {name} has {has:?}\n{log}"
            );
        }
    }
    for name in ["both", "alone"] {
        space.delete(name)?;
    }
    until_free(agents, "each")
}

/// Checks that five pods on any nodes have a slot of a device with capacity 5; the others wait, none fails, and each end of a pod starts one more.
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
