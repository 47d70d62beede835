//! Ten nodes want a device of five slots, as in Akri's document on sharing devices: five pods run, five wait, and when one ends another one runs.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, bail, ensure};
use leafhost_tests::kubelet::Kubelet;
use leafhost_tests::kubelet::model::Refusal;
use leafhost_tests::kubelet::pods::PodSpec;
use leafhost_tests::slot_history::Recorder;
use leafhost_tests::stand_in_node::{configure, name_of, until_seen};
use leafhost_tests::wait::eventually;
use tokio::task::JoinSet;

use crate::races;

const NODES: usize = 10;
const SLOTS: usize = 5;

/// State of the only pod of a node.
#[derive(Debug, Clone, Default, PartialEq)]
struct State {
    /// True while the node's Allocate is not answered.
    asks: bool,
    /// UID of the running pod.
    runs: Option<String>,
    /// Slots that the node was refused, each because another node had just claimed it.
    refused: Vec<String>,
}

fn lock(states: &Mutex<Vec<State>>) -> MutexGuard<'_, Vec<State>> {
    states.lock().unwrap_or_else(PoisonError::into_inner)
}

#[test]
fn of_ten_pods_that_want_one_of_five_slots_five_run_and_another_when_one_ends() -> Result<()> {
    let Some((cluster, _turn)) = races::cluster()? else {
        return Ok(());
    };
    let runtime = races::runtime()?;
    let space = cluster.namespace("ten")?;
    let nodes = races::start(cluster, &runtime, &space, NODES)?;
    let recorder = Recorder::start(cluster.api(), space.name())?;
    configure(
        cluster,
        space.name(),
        "ten",
        u32::try_from(SLOTS)?,
        &["shared".to_owned()],
    )?;
    let instances =
        until_seen(cluster.api(), space.name(), 1, NODES).with_context(|| space.state())?;
    let resource = format!(
        "akri.sh/{}",
        name_of(instances.first().context("no Instance")?)
    );
    let all_listed = async {
        for node in &nodes {
            node.until_healthy(&resource, SLOTS).await?;
        }
        anyhow::Ok(())
    };
    runtime.block_on(all_listed)?;

    let states = Arc::new(Mutex::new(vec![State::default(); NODES]));
    let _entered = runtime.enter();
    let mut pods = JoinSet::new();
    for (index, node) in nodes.iter().enumerate() {
        pods.spawn(want(
            node.kubelet.clone(),
            resource.clone(),
            index,
            Arc::clone(&states),
        ));
    }
    let settled =
        |running: usize| {
            eventually(&format!("{running} pods have run"), || {
                let now = lock(&states).clone();
                let run = now.iter().filter(|state| state.runs.is_some()).count();
                let asks = now.iter().any(|state| state.asks);
                ensure!(run == running && !asks, "{now:?}");
                for (state, node) in now.iter().zip(&nodes) {
                    let healthy = node.kubelet.capacity(&resource).map(|(_, healthy)| healthy);
                    let own =
                        usize::from(state.runs.as_ref().is_some_and(|uid| {
                            !node.kubelet.held(uid, "main", &resource).is_empty()
                        }));
                    ensure!(
                        healthy == Some(own),
                        "{} has {healthy:?}, {now:?}",
                        node.name()
                    );
                }
                ensure!(*lock(&states) == now, "one has asked meanwhile");
                Ok(now)
            })
            .with_context(|| space.state())
        };
    let before = settled(SLOTS)?;
    println!("five run: {before:?}");
    let ends = before
        .iter()
        .position(|state| state.runs.is_some())
        .context("none runs")?;
    let (node, uid) = nodes
        .get(ends)
        .zip(before.get(ends).and_then(|state| state.runs.clone()))
        .context("none runs")?;
    node.kubelet.delete_pod(&uid)?;
    let after = settled(SLOTS + 1)?;
    println!("one has ended: {after:?}");
    for (before, after) in before.iter().zip(&after) {
        let slots: BTreeSet<&String> = before.refused.iter().collect();
        ensure!(
            slots.len() == before.refused.len(),
            "{before:?} was refused twice for the same"
        );
        // One slot was freed.
        ensure!(
            after.refused.len() <= before.refused.len() + 1,
            "{before:?}, {after:?}"
        );
    }
    drop(pods);
    let history = recorder.finish()?;
    ensure!(
        history.holders().len() == SLOTS && history.passed_on == 1,
        "{:?}",
        history.holders()
    );
    Ok(())
}

/// Runs a pod once its node has a free device; recreates it after a refusal, as a Deployment does, until it runs.
async fn want(
    kubelet: Kubelet,
    resource: String,
    index: usize,
    states: Arc<Mutex<Vec<State>>>,
) -> Result<()> {
    for number in 0.. {
        kubelet
            .until("a device is free", |kubelet| {
                let now = kubelet.capacity(&resource);
                ensure!(now.is_some_and(|(_, healthy)| healthy > 0), "{now:?}");
                Ok(())
            })
            .await?;
        let spec = PodSpec::asking(&format!("pod-{number}"), &resource, 1);
        let note = |what: &dyn Fn(&mut State)| lock(&states).get_mut(index).map(what);
        note(&|state| state.asks = true);
        let (uid, admitted) = kubelet.run_pod(&spec).await?;
        match admitted {
            Ok(()) => {
                note(&|state| {
                    state.asks = false;
                    state.runs = Some(uid.clone());
                });
                return Ok(());
            }
            Err(Refusal::Plugin {
                call: "Allocate",
                message,
                ..
            }) => {
                let slot = (0..SLOTS)
                    .map(|slot| format!("{}-{slot}", resource.trim_start_matches("akri.sh/")))
                    .find(|slot| message.split_whitespace().any(|word| word == slot))
                    .with_context(|| format!("refused for no slot: {message}"))?;
                // The slot is no longer offered, so that the next pod is not refused for the same one.
                kubelet
                    .until("the slot is shown as taken", |kubelet| {
                        let listed = kubelet.devices(&resource);
                        let device = listed.get(&slot).context("it is not listed")?;
                        ensure!(device.health == "Unhealthy", "{device:?}");
                        Ok(())
                    })
                    .await?;
                note(&|state| state.refused.push(slot.clone()));
            }
            Err(Refusal::NoneHealthy(_) | Refusal::TooFew { .. }) => {}
            Err(other) => bail!("{other}"),
        }
        note(&|state| state.asks = false);
        kubelet.delete_pod(&uid)?;
    }
    Ok(())
}
