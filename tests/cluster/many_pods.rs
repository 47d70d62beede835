//! Many pods on two nodes compete for few slots: each runs in the end, and no slot is lost or allocated twice.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::random::{self, Random};
use leafhost_tests::slot_history::Recorder;
use serde_json::Value;

use crate::pair::{Pair, resource, used};

const DEVICES: [&str; 4] = ["one", "two", "three", "four"];
const SLOTS: u32 = 2;
/// Number of pods at a time: more than there are slots.
const AT_ONCE: usize = 12;
/// Upper bound for a pod on a busy machine.
const EACH: Duration = Duration::from_secs(20);

#[test]
fn thirty_pods_on_two_nodes_that_compete_for_eight_slots_all_run_in_the_end() -> Result<()> {
    compete(30, 4)
}

/// Runs `SOAK_ROUNDS` pods with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes a quarter of an hour: make soak"]
fn soak_five_hundred_pods_on_two_nodes_compete() -> Result<()> {
    compete(random::rounds(500), random::seed()?)
}

fn compete(count: usize, seed: u64) -> Result<()> {
    let Some(cluster) = cluster::shared()? else {
        return Ok(());
    };
    let mut random = Random::new(seed);
    let pair = Pair::start(cluster, "pods", &[])?;
    let (api, pods) = (cluster.api(), pair.space.collection("pods"));
    let recorder = Recorder::start(api, pair.space.name())?;
    pair.configure(SLOTS, &DEVICES, "{MODE: fast}")?;
    let found = pair.until("both nodes see all devices", &DEVICES, |_| true)?;
    let resources: Vec<String> = found.values().map(resource).collect();
    for site in &pair.sites {
        for resource in &resources {
            site.node.wait_allocatable(resource, u64::from(SLOTS))?;
        }
    }
    let list = api.get(&pods)?;
    let mut version = list["metadata"]["resourceVersion"]
        .as_str()
        .context("no version")?
        .to_owned();
    let end = Instant::now() + EACH * u32::try_from(count + AT_ONCE)?;
    let (mut made, mut there, mut done, mut refused) = (0, 0, 0, 0);
    let mut nodes: BTreeMap<String, usize> = BTreeMap::new();
    while done < count {
        ensure!(
            Instant::now() < end,
            "{done} of {count} have run\n{}",
            pair.space.state()
        );
        while there < AT_ONCE && done + there < count {
            let resource = random.pick(&resources).context("no resource")?;
            let main = Container::new("main")
                .device(resource, 1)
                .script("env; sleep 1");
            pair.space
                .create(&Pod::new(&format!("pod-{made}"), &[main]))?;
            made += 1;
            there += 1;
        }
        let mut ended: BTreeMap<String, Value> = BTreeMap::new();
        api.changes(&pods, &mut version, 1, |kind, pod| {
            let has_ended = ["Succeeded", "Failed"]
                .iter()
                .any(|phase| pod["status"]["phase"] == *phase);
            let name = pod["metadata"]["name"].as_str();
            // Each pod is deleted once.
            if kind == "MODIFIED" && has_ended && pod["metadata"]["deletionTimestamp"].is_null() {
                ended.insert(name.unwrap_or_default().to_owned(), pod.clone());
            }
        })?;
        for (name, pod) in ended {
            if api
                .delete(&format!("{pods}/{name}?gracePeriodSeconds=0"))
                .is_err()
            {
                continue;
            }
            there -= 1;
            if pod["status"]["phase"] == "Succeeded" {
                done += 1;
                let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
                *nodes.entry(node.to_owned()).or_default() += 1;
            } else if pod["status"]["reason"] == "UnexpectedAdmissionError" {
                refused += 1;
            } else {
                bail!("{pod:#}\n{}", pair.space.state());
            }
        }
    }
    pair.until("all slots are free", &DEVICES, |one| used(one).is_empty())?;
    let history = recorder.finish()?;
    println!(
        "{count} pods have run, {nodes:?}; {refused} were refused and made again; {} versions, a slot went to another node {} times",
        history.versions, history.passed_on
    );
    ensure!(
        nodes.len() == 2 && history.holders().is_empty(),
        "{nodes:?}, {:?}",
        history.holders()
    );
    Ok(())
}
