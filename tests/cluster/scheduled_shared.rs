//! A shared device with fewer slots than pods that describe it: as many run as it has slots, the others stay Pending, and each end starts one more.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster;
use leafhost_tests::scheduling::{AGENT, wait};
use leafhost_tests::wait::eventually;
use serde_json::{Value, json};

use crate::scheduled::until_free;
use crate::scheduled_field::{Field, soon};

const CONFIGURATION: &str = "camera";
/// Time for which none of the waiting pods may be started.
const STILL: Duration = Duration::from_secs(3);

#[test]
fn as_many_pods_run_as_a_shared_device_has_slots_and_each_end_starts_one_more() -> Result<()> {
    take_turns(2, 5, 3)
}

#[test]
#[ignore = "takes minutes: make soak"]
fn soak_of_20_pods_five_share_a_device_and_each_end_starts_one_more() -> Result<()> {
    take_turns(5, 20, 15)
}

/// Creates `pods` pods for a device with `capacity` slots, and ends `ends` of those that run, one by one.
fn take_turns(capacity: usize, pods: usize, ends: usize) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let field = Field::start(cluster, "scheduled-shared", "shared-gpus", &AGENT)?;
    let space = field.space();
    let object = json!({
        "apiVersion": "akri.sh/v0", "kind": "Configuration", "metadata": {"name": CONFIGURATION, "namespace": space.name()},
        "spec": {"discoveryHandler": {"name": "debugEcho", "discoveryDetails": "{descriptions: [camera]}"}, "capacity": capacity},
    });
    cluster.apply(&object.to_string())?;
    eventually("both nodes see the device", || {
        let found = field.agents.instances(CONFIGURATION)?;
        let nodes = found
            .first()
            .and_then(|one| one["spec"]["nodes"].as_array());
        ensure!(nodes.map(Vec::len) == Some(2), "{found:#?}");
        Ok(())
    })
    .with_context(|| space.state())?;
    // Both names of the class are known.
    let classes = [&format!("{CONFIGURATION}.akri.sh"), CONFIGURATION];
    for number in 0..pods {
        let class = classes[number % 2];
        let says = json!([{"name": "camera", "exactly": {"deviceClassName": class}}]);
        let pod = field
            .scheduling
            .pod(&format!("viewer-{number}"), None, &says);
        space.create(&pod)?;
    }
    let mut running = until_running(&field, capacity, pods)?;
    wait(STILL);
    ensure!(
        until_running(&field, capacity, pods)? == running,
        "others run"
    );
    for end in 0..ends {
        let ended = running.first().context("none runs")?.clone();
        space.delete(&ended)?;
        let begun = Instant::now();
        let left = pods - end - 1;
        let now = until_running(&field, capacity.min(left), left)?;
        ensure!(
            now.difference(&running).count() == usize::from(left >= capacity),
            "{now:?} after {running:?}"
        );
        soon("a pod that waited for the shared device runs", begun)?;
        running = now;
    }
    field.clear()?;
    until_free(&field.agents, CONFIGURATION)
}

/// Waits until `running` of `all` pods run and have a slot each; checks that the others are Pending. Returns the names of those that run.
fn until_running(field: &Field, running: usize, all: usize) -> Result<BTreeSet<String>> {
    let space = field.space();
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    eventually(&format!("{running} of {all} pods run"), || {
        let list = field.agents.cluster.get(&space.collection("pods"))?;
        let pods = list["items"].as_array().context("no pods")?;
        ensure!(pods.len() == all, "{} pods", pods.len());
        let (mut names, mut holders) = (BTreeSet::new(), BTreeSet::new());
        for pod in pods {
            let (name, phase) = (
                text(&pod["metadata"]["name"]),
                text(&pod["status"]["phase"]),
            );
            if phase == "Running" {
                let (uid, node) = (
                    text(&pod["metadata"]["uid"]),
                    text(&pod["spec"]["nodeName"]),
                );
                holders.insert(format!("P:{uid}:{node}"));
                names.insert(name);
            } else {
                ensure!(phase == "Pending", "{name} is {phase}: {:#}", pod["status"]);
            }
        }
        let instances = field.agents.instances(CONFIGURATION)?;
        let usage = instances
            .first()
            .and_then(|one| one["spec"]["deviceUsage"].as_object());
        let used = usage.into_iter().flatten().map(|(_, by)| text(by));
        let used: BTreeSet<String> = used.filter(|by| !by.is_empty()).collect();
        ensure!(
            names.len() == running && used == holders,
            "{names:?} run, {used:?}"
        );
        Ok(names)
    })
    .with_context(|| field.scheduling.log())
    .with_context(|| space.state())
}
