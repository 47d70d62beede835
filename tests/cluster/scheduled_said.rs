//! A pod gets the devices that its scheduler has chosen, container by container, whatever its name is, whatever else it asks for, and whatever users
//! write in addition.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container};
use leafhost_tests::scheduling::{AGENT, ALLOCATED, DEVICES, exactly};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::disturbances::Paused;
use crate::scheduled_field::{Field, asks, soon, variables};

/// Resource of a device plugin, which is also the Configuration `steady`.
const PLUGIN: &str = "akri.sh/steady";
/// Variable of a container with the device of `steady`.
const ECHO: &str = "DEBUG_ECHO_DESCRIPTION";

#[test]
fn what_a_pod_gets_depends_on_nothing_that_users_write() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut field = Field::start(cluster, "scheduled-said", "said", &AGENT)?;
    refused(&field)?;
    names(&field)?;
    kinds(&field)?;
    beside(&field)?;
    init_containers_alone(&field)?;
    containers(&field)?;
    forged(&mut field)?;
    deleted_instance(&field)?;
    unreadable(&field)
}

/// Returns the devices of containers as a map of names to indices.
fn by_container(all: &[(&str, &[usize])]) -> BTreeMap<String, BTreeSet<usize>> {
    let all = all.iter();
    all.map(|(name, indices)| ((*name).to_owned(), indices.iter().copied().collect()))
        .collect()
}

/// Waits until a pod runs and checks the devices of each of its containers.
fn gets(field: &Field, pod: &str, expected: &[(&str, &[usize])]) -> Result<()> {
    field.running(pod)?;
    let has = field.has(field.space(), pod)?;
    ensure!(has == by_container(expected), "{pod} has {has:?}");
    Ok(())
}

/// Checks F18: a pod for a scheduler that chooses no devices is refused with a message that names the right one.
fn refused(field: &Field) -> Result<()> {
    let space = field.space();
    let other = field.gpu("other", 0);
    let own = format!("needs a scheduler that chooses devices: {}", space.name());
    for (pod, words) in [
        (
            other
                .clone()
                .with("schedulerName", json!("default-scheduler")),
            &*own,
        ),
        (
            other.with("nodeName", json!(field.node().name())),
            "the scheduler chooses the node",
        ),
    ] {
        let begun = Instant::now();
        let error = space.create(&pod).err().context("the pod is admitted")?;
        let text = format!("{error:#}");
        ensure!(text.contains(words), "{text}");
        println!("F18: a pod is refused {:?} after: {words}", begun.elapsed());
    }
    Ok(())
}

/// Checks F4: pods whose names have a common prefix, and one of the same name in another namespace, get and free their own devices.
fn names(field: &Field) -> Result<()> {
    let space = field.space();
    let elsewhere = field.agents.cluster.namespace("scheduled-elsewhere")?;
    let all = [("abc-123", 1), ("abc", 2), ("abc-1", 0)];
    let begun = Instant::now();
    for (name, index) in all {
        space.create(&field.gpu(name, index))?;
    }
    elsewhere.create(&field.gpu("abc", 3))?;
    for (name, index) in all {
        field.runs(name, index)?;
    }
    elsewhere
        .wait_running("abc")
        .with_context(|| field.scheduling.log())?;
    let has = field.has(&elsewhere, "abc")?;
    ensure!(has == by_container(&[("main", &[3])]), "{has:?}");
    soon("F4: four pods with names that begin alike run", begun)?;
    space.delete("abc")?;
    field.until_unused(2)?;
    // The devices of the others were not freed.
    for (name, index) in [("abc-123", 1), ("abc-1", 0)] {
        field.runs(name, index)?;
    }
    field.has(&elsewhere, "abc")?;
    drop(elsewhere);
    field.clear()
}

/// Checks F5: pods that ask for two kinds of devices, in one container and in two.
fn kinds(field: &Field) -> Result<()> {
    let space = field.space();
    let echo = || exactly("echo", json!({"deviceClassName": "steady"}));
    let mut together = field.one(&[0]);
    if let Some(requests) = together["requests"].as_array_mut() {
        requests.push(echo());
    }
    let says = json!({"main": together});
    let begun = Instant::now();
    space.create(&field.pod("together", [&[], &[asks("main")]], &says))?;
    let says = json!({"gpu": field.one(&[1]), "echo": {"requests": [echo()]}});
    let two = [asks("gpu"), asks("echo")];
    space.create(&field.pod("apart", [&[], &two], &says))?;
    gets(field, "together", &[("main", &[0])])?;
    gets(field, "apart", &[("gpu", &[1]), ("echo", &[])])?;
    soon("F5: two pods with two kinds of devices run", begun)?;
    for (pod, container, has) in [
        ("together", "main", true),
        ("apart", "echo", true),
        ("apart", "gpu", false),
    ] {
        let log = space.logs(pod, container)?;
        let echo = variables(&log, ECHO);
        ensure!(echo.contains("steady") == has, "{pod} {container}: {log}");
    }
    field.clear()
}

/// Checks F20: a pod that also asks for the resource of a device plugin, in the container with a ticket and in another one.
fn beside(field: &Field) -> Result<()> {
    let space = field.space();
    let says = json!({"main": field.one(&[2])});
    let plugged = |name: &str| Container::new(name).device(PLUGIN, 1);
    let begun = Instant::now();
    for (name, containers) in [
        ("beside", &[asks("main").device(PLUGIN, 1)][..]),
        ("split", &[plugged("side"), asks("main")]),
    ] {
        space.create(&field.pod(name, [&[], containers], &says))?;
        field.running(name)?;
        let has = field.has(space, name)?;
        ensure!(has["main"] == [2].into(), "{name} has {has:?}");
        let container = if name == "split" { "side" } else { "main" };
        let log = space.logs(name, container)?;
        ensure!(variables(&log, ECHO).contains("steady"), "{name}: {log}");
        if name == "split" {
            ensure!(!log.contains("MOCK_GPU"), "{name}: {log}");
            let log = space.logs(name, "main")?;
            ensure!(!log.contains(ECHO), "{name}: {log}");
        }
        space.delete(name)?;
    }
    soon(
        "F20: two pods with two resources have run, one after the other,",
        begun,
    )?;
    field.clear()
}

/// Checks F6: four pods at once in which only init containers ask, one of them with two.
fn init_containers_alone(field: &Field) -> Result<()> {
    let space = field.space();
    let init = |name: &str| asks(name).script("env");
    let begun = Instant::now();
    for index in 0..3 {
        let says = json!({"first": field.one(&[index])});
        let pod = field.pod(
            &format!("init-{index}"),
            [&[init("first")], &[Container::new("main")]],
            &says,
        );
        space.create(&pod)?;
    }
    let says = json!({"second": field.one(&[4]), "first": field.one(&[3])});
    let both = [init("second"), init("first")];
    space.create(&field.pod("init-3", [&both, &[Container::new("main")]], &says))?;
    for index in 0..3 {
        let pod = format!("init-{index}");
        gets(field, &pod, &[("first", &[index]), ("main", &[])])?;
    }
    gets(
        field,
        "init-3",
        &[("second", &[4]), ("first", &[3]), ("main", &[])],
    )?;
    soon("F6: four pods of which only init containers ask run", begun)?;
    field.clear()
}

/// Checks F9 and F10: the middle one of three containers, whose names are unsorted, asks for nothing; and a container with one ticket has all three
/// of its devices.
fn containers(field: &Field) -> Result<()> {
    let space = field.space();
    let begun = Instant::now();
    let three = [asks("z"), Container::new("m"), asks("a")];
    let says = json!({"a": field.some(3, &[0, 1, 2]), "z": field.some(2, &[3, 4])});
    space.create(&field.pod("three", [&[], &three], &says))?;
    gets(
        field,
        "three",
        &[("z", &[3, 4]), ("m", &[]), ("a", &[0, 1, 2])],
    )?;
    soon("F9, F10: a pod with three containers runs", begun)?;
    field.clear()
}

/// Checks F7 and F12: neither annotations that users write to the bound pod or to another one nor a restarted extender change the choice.
fn forged(field: &mut Field) -> Result<()> {
    let (cluster, name) = (field.agents.cluster, field.space().name().to_owned());
    let kubectl =
        |arguments: &[&str]| cluster.kubectl(&[&["--namespace", &*name], arguments].concat());
    let wish = |index: usize| json!({"main": field.one(&[index])}).to_string();
    let paused = Paused::new(field.node())?;
    let mut target = field.gpu("target", 0);
    for (annotation, value) in [
        ("leafhost.dev/tried-again", "1970-01-01T00:00:00Z"),
        ("hami.io/bind-phase", "allocating"),
        ("scheduling.k8s.io/device-allocated", "{}"),
    ] {
        target = target.annotated(annotation, value);
    }
    field.space().create(&target)?;
    field.bound("target")?;
    // Its container requests no ticket.
    let bystander = field
        .pod("bystander", [&[], &[Container::new("main")]], &json!({}))
        .annotated(DEVICES, &wish(1))
        .with("schedulerName", json!("default-scheduler"));
    field.space().create(&bystander)?;
    field.bound("bystander")?;
    let other = format!("{DEVICES}={}", wish(1));
    kubectl(&["annotate", "--overwrite", "pod", "target", &other])?;
    let label = format!("{ALLOCATED}=none");
    kubectl(&["label", "pod", "target", "bystander", &label])?;
    let elsewhere = format!(r#"{ALLOCATED}={{"main": ["another"]}}"#);
    for pod in ["target", "bystander"] {
        let done = kubectl(&["annotate", "--overwrite", "pod", pod, &elsewhere]);
        let error = done.err().context("a user says what a pod was given")?;
        let text = format!("{error:#}");
        ensure!(text.contains("only the scheduler writes it"), "{text}");
    }
    let decided = field.space().pod("target")?["metadata"]["annotations"][ALLOCATED].clone();
    drop(paused);
    let begun = Instant::now();
    field.runs("target", 0)?;
    field.running("bystander")?;
    let log = field.space().wait_logs("bystander", "main", "PATH=")?;
    ensure!(!log.contains("MOCK_GPU"), "{log}");
    soon(
        "F7: a pod runs with what was decided, whatever is written,",
        begun,
    )?;
    // The pod's edited annotation names the device that the next pod gets, and the new extender has no memory.
    field.scheduling.replace_extender(Duration::ZERO)?;
    let begun = Instant::now();
    field.space().create(&field.gpu("next", 1))?;
    field.runs("next", 1)?;
    soon(
        "F12: the next pod runs, the extender being another one,",
        begun,
    )?;
    field.runs("target", 0)?;
    let now = field.space().pod("target")?["metadata"]["annotations"][ALLOCATED].clone();
    ensure!(now == decided, "{decided} was decided, and now it is {now}");
    field.clear()
}

/// Checks that a running pod keeps its slot in an Instance that was deleted and recreated, before another pod can take it.
fn deleted_instance(field: &Field) -> Result<()> {
    let space = field.space();
    space.create(&field.gpu("holder", 0))?;
    field.runs("holder", 0)?;
    let said = space.pod("holder")?["metadata"]["annotations"][ALLOCATED].clone();
    let said = said.as_str().context("nothing is said")?;
    let said: BTreeMap<String, Vec<String>> = serde_json::from_str(said)?;
    let instance = said["main"].first().context("no Instance")?;
    let uid = |instances: &[Value]| {
        let mut found = instances.iter();
        let found = found.find(|one| one["metadata"]["name"] == **instance);
        found.map(|one| one["metadata"]["uid"].clone())
    };
    let before = uid(&field.agents.instances(&field.gpus)?);
    space.create(&field.gpu("waiting", 0))?;
    space.wait_unschedulable("waiting")?;
    let (cluster, name) = (field.agents.cluster, space.name());
    cluster.kubectl(&["--namespace", name, "delete", "instances.akri.sh", instance])?;
    eventually(
        "the Instance is made anew, and the pod has its slot",
        || {
            let now = uid(&field.agents.instances(&field.gpus)?);
            ensure!(now.is_some() && now != before, "{now:?}");
            field.runs("holder", 0)
        },
    )
    .with_context(|| field.scheduling.log())?;
    let waiting = space.pod("waiting")?;
    ensure!(waiting["spec"]["nodeName"].is_null(), "{waiting:#}");
    space.delete("holder")?;
    let begun = Instant::now();
    field.runs("waiting", 0)?;
    soon(
        "F21: the pod that waits runs, the other one being gone,",
        begun,
    )?;
    field.clear()
}

/// Checks F16: while the kubelet's record of a running pod cannot be read, its devices are not free.
fn unreadable(field: &Field) -> Result<()> {
    let space = field.space();
    let checkpoint = field
        .node()
        .device_plugins()
        .join("kubelet_internal_checkpoint");
    space.create(&field.gpu("holder", 0))?;
    field.runs("holder", 0)?;
    let good = fs::read(&checkpoint)?;
    // As the kubelet does it: a complete file replaces the other one.
    let replace = |bytes: &[u8]| -> Result<()> {
        let new = checkpoint.with_extension("new");
        fs::write(&new, bytes)?;
        fs::rename(&new, &checkpoint).context("cannot replace the kubelet's checkpoint")
    };
    replace(&good[..good.len() / 2])?;
    space.create(&field.gpu("waiting", 0))?;
    space.wait_unschedulable("waiting")?;
    // To serve this pod the agent must read the checkpoint.
    space.create(&field.gpu("blind", 1))?;
    let (phase, why) = field.outcome("blind")?;
    println!("F16: with half a checkpoint the next pod is {phase}: {why}");
    if phase == "Failed" {
        ensure!(why.contains("for which pod this is"), "{why}");
        replace(&good)?;
    } else {
        // The kubelet has rewritten the checkpoint.
        field.runs("blind", 1)?;
    }
    field.runs("holder", 0)?;
    let waiting = space.pod("waiting")?;
    ensure!(waiting["spec"]["nodeName"].is_null(), "{waiting:#}");
    space.delete("blind")?;
    space.delete("holder")?;
    let begun = Instant::now();
    field.runs("waiting", 0)?;
    soon(
        "F16: the pod that waits runs, the other one being gone,",
        begun,
    )?;
    eventually("the agent can read everything again", || {
        let status = field.agents.sites[0].home.status()?.to_string();
        ensure!(!status.contains("kubelet's checkpoint"), "{status}");
        Ok(())
    })?;
    field.clear()
}
