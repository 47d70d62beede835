//! Crowds of pods that each describe another device, next to pods that take any device of another Configuration from the device plugin: by the
//! kubelets' own records and by its variables no container has the device of another one, and no pod fails.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use leafhost_kubelet::records::{Error, PodResources, read_checkpoint};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::scheduling::{AGENT, DEVICES, wait};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::device::variable;
use crate::disturbances::Paused;
use crate::scheduled::until_free;
use crate::scheduled_field::Field;

/// Configuration whose devices the kubelet chooses, and its resource.
const PLUGGED: &str = "plugged";
const RESOURCE: &str = "akri.sh/plugged";
/// Capacity of each of its devices, as [`Agents::configure`](crate::agents::Agents::configure) sets it.
const CAPACITY: usize = 2;

#[test]
fn pods_that_come_at_once_each_get_what_they_describe() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let field = Field::start(cluster, "scheduled-crowd", "crowd", &AGENT)?;
    prepare(&field, 20, 20)?;
    wave(&field, 0..20, 20)?;
    beside_a_client_that_asks_without_end(&field)
}

/// Runs two waves, because a node runs at most 110 pods.
#[test]
#[ignore = "takes minutes: make soak"]
fn soak_200_pods_that_come_at_once_each_get_what_they_describe() -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let field = Field::start(cluster, "scheduled-crowd", "crowd", &AGENT)?;
    prepare(&field, 100, 50)?;
    for first in [0, 50] {
        wave(&field, first..first + 50, 50)?;
    }
    beside_a_client_that_asks_without_end(&field)?;
    while_agents_are_slow(&field)
}

/// Time for which the agents stand still at a time, and time for which they run in between.
const STILL: Duration = Duration::from_millis(950);
const RUNS: Duration = Duration::from_millis(50);

/// Runs a wave while the agents stand still most of the time, so that an Allocate takes up to a second.
fn while_agents_are_slow(field: &Field) -> Result<()> {
    let mut agents = Vec::new();
    for site in &field.agents.sites {
        agents.push(site.home.pid()?);
    }
    let slow = || {
        let still = agents.iter().map(|agent| Paused::stop(*agent));
        let still = still.collect::<Result<Vec<_>>>()?;
        wait(STILL);
        still.into_iter().try_for_each(Paused::end)?;
        wait(RUNS);
        Ok(())
    };
    during(vec![Box::new(slow)], || wave(field, 0..10, 0))
}

/// Action that is repeated.
type Repeated<'r> = Box<dyn Fn() -> Result<()> + Send + 'r>;

/// Repeats each of the actions in a thread of its own until `act` has returned.
fn during(repeated: Vec<Repeated<'_>>, act: impl FnOnce() -> Result<()>) -> Result<()> {
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for repeat in repeated {
            let is_over = &is_over;
            threads.push(scope.spawn(move || {
                while !is_over.load(Ordering::Acquire) {
                    repeat()?;
                }
                anyhow::Ok(())
            }));
        }
        let done = act();
        is_over.store(true, Ordering::Release);
        for thread in threads {
            let ended = thread.join();
            ended.map_err(|_| anyhow!("a thread panicked"))??;
        }
        done
    })
}

/// Gives each node `gpus` GPUs, and slots for `plugged` pods that ask for any device.
fn prepare(field: &Field, gpus: usize, plugged: usize) -> Result<()> {
    field.grow(gpus)?;
    let devices: Vec<String> = (0..plugged / CAPACITY)
        .map(|number| format!("plugged-{number}"))
        .collect();
    let details = format!("{{shared: false, descriptions: [{}]}}", devices.join(", "));
    field.agents.configure(PLUGGED, "debugEcho", &details)?;
    for site in &field.agents.sites {
        eventually("the node offers the devices", || {
            let (_, amount) = site.amounts(RESOURCE)?;
            // A slot per device; both nodes together have enough.
            ensure!(
                usize::try_from(amount)? * 2 >= plugged,
                "{amount} of {RESOURCE}"
            );
            Ok(())
        })
        .with_context(|| field.space().state())?;
    }
    Ok(())
}

/// Creates two pods for each of these GPUs, which each node has once, and `plugged` pods that take any device of the other Configuration.
fn wave(field: &Field, indices: std::ops::Range<usize>, plugged: usize) -> Result<()> {
    let mut pods: Vec<(String, Option<usize>)> = Vec::new();
    for index in indices {
        pods.push((format!("first-{index}"), Some(index)));
        pods.push((format!("second-{index}"), Some(index)));
    }
    // The two kinds alternate.
    let every = pods.len() / plugged.max(1) + 1;
    for number in 0..plugged {
        let place = (number * every).min(pods.len());
        pods.insert(place, (format!("plugged-{number}"), None));
    }
    let begun = Instant::now();
    for (name, index) in &pods {
        let pod = match index {
            Some(index) => {
                let says = json!([field.one(&[*index])["requests"][0]]);
                field.scheduling.pod(name, None, &says)
            }
            None => Pod::new(name, &[Container::new("main").device(RESOURCE, 1)]),
        };
        field.space().create(&pod)?;
    }
    println!("{} pods are made {:?} after", pods.len(), begun.elapsed());
    for (name, _) in &pods {
        field.running(name)?;
    }
    println!("F19: {} pods run {:?} after", pods.len(), begun.elapsed());
    check(field, &pods)?;
    let list = field
        .agents
        .cluster
        .get(&field.space().collection("events"))?;
    let mut told: BTreeMap<String, usize> = BTreeMap::new();
    for event in list["items"].as_array().into_iter().flatten() {
        let reason = event["reason"].as_str().unwrap_or_default();
        if ["FailedScheduling", "DevicesRefused"].contains(&reason) {
            let message = event["message"].as_str().unwrap_or_default();
            *told.entry(format!("{reason}: {message}")).or_default() += 1;
        }
    }
    println!("F19: pods were refused for a while: {told:#?}");
    field.clear()?;
    until_free(&field.agents, PLUGGED)
}

/// IDs of a resource by the UID of the pod, as a kubelet has recorded them.
type Booked = BTreeMap<String, BTreeSet<String>>;

/// Checks that each pod runs with its own device, by the records of its kubelet and by its variables.
fn check(field: &Field, pods: &[(String, Option<usize>)]) -> Result<()> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let space = field.space();
    let list = field.agents.cluster.get(&space.collection("pods"))?;
    let objects = list["items"].as_array().context("no pods")?;
    ensure!(objects.len() == pods.len(), "{} pods", objects.len());
    let uids: BTreeSet<String> = objects
        .iter()
        .map(|one| text(&one["metadata"]["uid"]))
        .collect();
    let mut booked: BTreeMap<(String, &str), Booked> = BTreeMap::new();
    for site in &field.agents.sites {
        let path = site
            .node
            .device_plugins()
            .join("kubelet_internal_checkpoint");
        let read = read_checkpoint(&path)?.context("no checkpoint")?;
        for resource in [DEVICES, RESOURCE] {
            let mut own = Booked::new();
            // A kubelet forgets pods that have ended at the next request.
            let present = read
                .entries
                .iter()
                .filter(|one| uids.contains(&one.pod_uid));
            for entry in present.filter(|one| one.resource == resource) {
                let before = own.insert(entry.pod_uid.clone(), entry.ids.clone());
                ensure!(before.is_none(), "{entry:?} and {before:?}");
            }
            booked.insert((site.node.name().to_owned(), resource), own);
        }
    }
    let mut tickets = BTreeSet::new();
    let mut plugged: BTreeMap<(String, String), usize> = BTreeMap::new();
    for object in objects {
        let (name, node) = (
            text(&object["metadata"]["name"]),
            text(&object["spec"]["nodeName"]),
        );
        ensure!(object["status"]["phase"] == "Running", "{object:#}");
        let uid = text(&object["metadata"]["uid"]);
        let ids = |resource: &'static str| {
            let own = booked.get(&(node.clone(), resource));
            own.and_then(|own| own.get(&uid))
                .cloned()
                .unwrap_or_default()
        };
        let (own, other) = (ids(DEVICES), ids(RESOURCE));
        let mut all = pods.iter();
        let (_, index) = all
            .find(|(other, _)| *other == name)
            .context("whose is it?")?;
        let Some(index) = index else {
            ensure!(
                own.is_empty() && other.len() == 1,
                "{name} on {node} has the tickets {own:?} and {other:?}"
            );
            let log = space.wait_logs(&name, "main", "PATH=")?;
            ensure!(!log.contains("MOCK_GPU"), "{name} has a GPU: {log}");
            let device = variable(&log, "DEBUG_ECHO_DESCRIPTION").context("no device")?;
            *plugged.entry((node, device)).or_default() += 1;
            continue;
        };
        ensure!(
            own.len() == 1 && other.is_empty(),
            "{name} on {node} has the tickets {own:?} and {other:?}"
        );
        for ticket in own {
            let is_new = tickets.insert((node.clone(), ticket.clone()));
            ensure!(is_new, "{ticket} of {node} is of {name} and of another pod");
        }
        let has = field.has(space, &name)?;
        ensure!(
            has == BTreeMap::from([("main".to_owned(), BTreeSet::from([*index]))]),
            "{name} has {has:?}"
        );
        let log = space.logs(&name, "main")?;
        ensure!(!log.contains("DEBUG_ECHO"), "{name} has both: {log}");
    }
    let crowded: Vec<_> = plugged
        .iter()
        .filter(|(_, count)| **count > CAPACITY)
        .collect();
    ensure!(crowded.is_empty(), "{crowded:?}");
    println!(
        "{} containers with their own tickets and devices, {} with any device, 0 exchanged",
        tickets.len(),
        plugged.values().sum::<usize>()
    );
    Ok(())
}

/// Runs a wave while a client on each node calls the kubelet's PodResources in a loop, which the agent must call, too.
fn beside_a_client_that_asks_without_end(field: &Field) -> Result<()> {
    let (answers, refusals) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let mut clients: Vec<Repeated<'_>> = Vec::new();
    for site in &field.agents.sites {
        let kubelet = PodResources::new(site.node.pod_resources().join("kubelet.sock"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (answers, refusals) = (&answers, &refusals);
        clients.push(Box::new(move || {
            match runtime.block_on(kubelet.list()) {
                Ok(_) => answers.fetch_add(1, Ordering::AcqRel),
                Err(Error::Limited { .. }) => refusals.fetch_add(1, Ordering::AcqRel),
                Err(error) => return Err(error.into()),
            };
            Ok(())
        }));
    }
    let outcome = during(clients, || {
        eventually("the kubelets answer nobody more", || {
            let refused = refusals.load(Ordering::Acquire);
            ensure!(refused > 0, "they have refused nothing");
            Ok(())
        })?;
        wave(field, 0..10, 0)
    });
    println!("beside a client that was answered {answers:?} times and refused {refusals:?} times");
    outcome
}
