//! Pods that describe their devices: a scheduler and its extender choose them, and the agents of two nodes allocate exactly these to each container.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Cluster, Container, Namespace, Pod};
use leafhost_tests::scheduling::{AGENT, ALLOCATED, DEVICES, Scheduling, exactly, indices, of};
use leafhost_tests::wait::eventually;
use serde_json::json;

use crate::agents::Agents;
use crate::crowd::in_use;

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
        in_use(&agents.instances(configuration)?)
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
fn an_app_container_reuses_the_device_of_an_init_container_and_one_alone_has_its_own() -> Result<()>
{
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let (agents, scheduling) = start(cluster, "scheduled-init", "each", &AGENT)?;
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
    until_free(&agents, "each")
}
