//! Agents of nodes without machines compete for slots: none is lost, and none has two owners.

use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use anyhow::{Context, Result, anyhow, ensure};
use leafhost_tests::cluster::{Cluster, Namespace};
use leafhost_tests::contest::{Contest, agreed};
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::random::{self, Random};
use leafhost_tests::requirement;
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::stand_in_node::{StandInNode, configure, name_of, until_seen};
use serde_json::Value;
use tokio::runtime::Runtime;

const DEVICES: usize = 50;
const SLOTS: usize = 4;
/// Number of pods of a node that remain when the race is over.
const STAY: usize = 20;

#[test]
fn two_nodes_that_race_for_the_slots_of_fifty_devices_never_share_one() -> Result<()> {
    race(1200, 4, 4)
}

/// Runs `SOAK_ROUNDS` claims with the random sequence of `SOAK_SEED`.
#[test]
#[ignore = "takes half an hour: make soak"]
fn soak_two_nodes_race_for_the_slots_of_fifty_devices() -> Result<()> {
    race(random::rounds(100_000), random::seed()?, 20)
}

/// Returns a cluster for one test at a time: agents of nodes without machines join the Instances of all tests.
pub fn cluster() -> Result<Option<(&'static Cluster, MutexGuard<'static, ()>)>> {
    static CLUSTER: OnceLock<Result<Cluster, String>> = OnceLock::new();
    static TURN: Mutex<()> = Mutex::new(());
    if requirement::lacks(Cluster::missing())? {
        return Ok(None);
    }
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    let cluster = CLUSTER.get_or_init(|| Cluster::start(1).map_err(|error| format!("{error:#}")));
    let cluster = cluster.as_ref();
    Ok(Some((
        cluster.map_err(|error| anyhow!("no cluster: {error}"))?,
        turn,
    )))
}

/// Creates a runtime for the kubelets' stand-ins and their pods.
pub fn runtime() -> Result<Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .context("cannot start a runtime")
}

/// Starts nodes with agents. Only the first one compiles the handler.
pub fn start(
    cluster: &Cluster,
    runtime: &Runtime,
    space: &Namespace<'_>,
    count: usize,
) -> Result<Vec<StandInNode>> {
    let mut nodes: Vec<StandInNode> = Vec::new();
    for number in 0..count {
        let name = format!("{}-{number}", space.name());
        let mut node = StandInNode::new(cluster, runtime.handle(), &name)?;
        if let Some(first) = nodes.first() {
            node.share_compiled(first)?;
        }
        node.home.start(&[])?;
        space.show_log(&node.home.log_file());
        if nodes.is_empty() {
            node.home.until("the handler is compiled", |status| {
                let handlers = status.get("handlers").and_then(Value::as_array);
                let is_there =
                    |one: &Value| one["status"] == "Waiting" || one["status"] == "Active";
                handlers.is_some_and(|all| all.iter().any(is_there))
            })?;
        }
        nodes.push(node);
    }
    Ok(nodes)
}

fn race(claims: usize, seed: u64, asks: u64) -> Result<()> {
    let Some((cluster, _turn)) = cluster()? else {
        return Ok(());
    };
    let mut random = Random::new(seed);
    let runtime = runtime()?;
    let space = cluster.namespace("race")?;
    let nodes = start(cluster, &runtime, &space, 2)?;
    let recorder = Recorder::start(cluster.api(), space.name())?;
    let devices: Vec<String> = (0..DEVICES)
        .map(|number| format!("device-{number}"))
        .collect();
    configure(
        cluster,
        space.name(),
        "race",
        u32::try_from(SLOTS)?,
        &devices,
    )?;
    let instances = until_seen(cluster.api(), space.name(), DEVICES, nodes.len())
        .with_context(|| space.state())?;
    let instances: Vec<String> = instances
        .iter()
        .map(|one| name_of(one).to_owned())
        .collect();
    let all_listed = async {
        for node in &nodes {
            for instance in &instances {
                node.until_healthy(&format!("akri.sh/{instance}"), SLOTS)
                    .await?;
            }
        }
        anyhow::Ok(())
    };
    runtime.block_on(all_listed)?;
    let contest = Contest {
        space: space.name().to_owned(),
        instances,
        pods: 12,
        claims,
        wanted: 6,
        lasts: (100, 500),
        asks,
    };
    let outcome = runtime.block_on(contest.run(cluster.api(), &nodes, &mut random))?;
    let stay = runtime.block_on(stay(&nodes, &contest.instances, &mut random))?;
    let all: Vec<&StandInNode> = nodes.iter().collect();
    let last = agreed(cluster.api(), space.name(), &all).with_context(|| space.state())?;
    let history = recorder.finish()?;
    println!(
        "{} claims, {} refused, {stay} stay; {} pods asked the API server; {} versions, a slot went to another node {} times",
        outcome.grants.len(),
        outcome.refused,
        outcome.asked,
        history.versions,
        history.passed_on
    );
    ensure!(
        history.holders() == last,
        "the watch has seen {:?}",
        history.holders()
    );
    ensure!(
        stay > 0 && history.passed_on > 10 && outcome.asked > 0,
        "no race"
    );
    Ok(())
}

/// Starts pods that remain on both nodes; returns the number of those that got a slot.
async fn stay(nodes: &[StandInNode], instances: &[String], random: &mut Random) -> Result<usize> {
    let mut stay = 0;
    for number in 0..STAY {
        for node in nodes {
            let instance = random.pick(instances).context("no Instance")?;
            let spec = PodSpec::asking(
                &format!("stays-{number}"),
                &format!("akri.sh/{instance}"),
                1,
            );
            let (uid, admitted) = node.kubelet.run_pod(&spec).await?;
            match admitted {
                Ok(()) => stay += 1,
                Err(_) => node.kubelet.delete_pod(&uid)?,
            }
        }
    }
    Ok(stay)
}
