//! Many pods on two nodes compete for few slots: each runs in the end, and no slot is lost or allocated twice.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use leafhost_tests::cluster::{self, Container, Pod};
use leafhost_tests::random::{self, Random};
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::stand_in_node::instances_path;
use leafhost_tests::wait::{TIMEOUT, within};

use crate::crowd::{Crowd, Kind, Rules, Wish};
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
    let path = instances_path(pair.space.name());
    let recorder = Recorder::start(cluster.api(), pair.space.name())?;
    pair.configure(SLOTS, &DEVICES, "{MODE: fast}")?;
    let found = pair.until("both nodes see all devices", &DEVICES, |_| true)?;
    let resources: Vec<String> = found.values().map(resource).collect();
    for site in &pair.sites {
        for resource in &resources {
            site.node.wait_allocatable(resource, u64::from(SLOTS))?;
        }
    }
    let wishes = |_: &Crowd<'_>, _: usize, name: &str, random: &mut Random| {
        let resource = random.pick(&resources).context("no resource")?;
        let main = Container::new("main").device(resource, 1);
        let pod = Pod::new(name, &[main.script("env; sleep 1")]);
        let kind = Kind::Instance;
        Ok(Wish { pod, kind })
    };
    let begun = Instant::now();
    let most = EACH * u32::try_from(count + AT_ONCE)?;
    let rules = Rules {
        size: AT_ONCE,
        pods: Some(count),
        capacity: usize::try_from(SLOTS)?,
        patience: most,
        gives_up: None,
        phase: "Succeeded",
        lasts: (0, 0),
        freed: TIMEOUT,
        accepts: |failure| failure.why.starts_with("UnexpectedAdmissionError: "),
    };
    let crowd = Crowd::new(cluster, &pair.space, &path, rules, &wishes);
    let tally = crowd.run(recorder, &mut random, || {
        within(most, "the last pod starts", || {
            let is_over = crowd.has_gone_wrong() || !crowd.has_more();
            ensure!(is_over, "some have not started");
            Ok(())
        })
    })?;
    ensure!(begun.elapsed() < most, "only after {:?}", begun.elapsed());
    pair.until("all slots are free", &DEVICES, |one| used(one).is_empty())?;
    ensure!(tally.nodes().len() == 2, "{:?}", tally.nodes());
    Ok(())
}
