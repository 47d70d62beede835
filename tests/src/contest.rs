//! Pods of several stand-in nodes that are created and deleted continuously and compete for the slots of the same devices.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use serde_json::Value;
use tokio::task::{JoinSet, spawn_blocking};

use crate::cluster::Api;
use crate::kubelet::Kubelet;
use crate::kubelet::model::Refusal;
use crate::kubelet::pods::PodSpec;
use crate::random::Random;
use crate::slot_history::{Holders, holders};
use crate::stand_in_node::{StandInNode, instances_path};
use crate::wait::eventually;

/// Pause of a pod that finds no free device on its node.
const AGAIN: Duration = Duration::from_millis(5);
/// Number of claims after which pods want another Instance. A slot is freed at the earliest five seconds after its allocation, unless its node
/// allocates it again, so a round over all Instances must take longer.
const TURN: u64 = 8;
/// Number of claims after which the record of the stand-in is emptied.
const RECORDED: usize = 500;

/// Parameters of the contest.
#[derive(Debug, Clone)]
pub struct Contest {
    /// Namespace of the Instances.
    pub space: String,
    /// Names of the Instances.
    pub instances: Vec<String>,
    /// Number of pods per node that want a device at a time.
    pub pods: usize,
    /// Number of claims in total.
    pub claims: usize,
    /// Number of Instances that pods want at a time; the set moves on after some claims.
    pub wanted: usize,
    /// Shortest and longest run of a pod, in milliseconds.
    pub lasts: (u64, u64),
    /// One of this many pods asks the API server if its slot stays its node's until the pod ends.
    pub asks: u64,
}

/// Allocation of a slot to a pod.
#[derive(Debug, Clone)]
pub struct Grant {
    /// Name of the slot.
    pub slot: String,
    /// Name of the node.
    pub node: String,
    /// Time at which the kubelet had the answer.
    pub from: Instant,
    /// Time at which the pod began to end.
    pub until: Instant,
}

/// Results of the contest.
#[derive(Debug, Default)]
pub struct Outcome {
    /// All grants.
    pub grants: Vec<Grant>,
    /// Wait of the kubelet for each answer.
    pub waits: Vec<Duration>,
    /// Number of claims that agents refused.
    pub refused: usize,
    /// Number of times a pod asked the API server.
    pub asked: usize,
}

impl Contest {
    /// Runs the contest. On return all pods have ended, but some slots may not be free yet.
    pub async fn run(
        &self,
        api: &Api,
        nodes: &[StandInNode],
        random: &mut Random,
    ) -> Result<Outcome> {
        let made = Arc::<AtomicUsize>::default();
        let outcome = Arc::<Mutex<Outcome>>::default();
        let mut tasks = JoinSet::new();
        for node in nodes {
            // The kubelet admits one pod at a time.
            let turn = Arc::<tokio::sync::Mutex<()>>::default();
            for number in 0..self.pods {
                let worker = Worker {
                    contest: self.clone(),
                    api: api.clone(),
                    node: node.name().to_owned(),
                    kubelet: node.kubelet.clone(),
                    number,
                    random: random.split(),
                    turn: Arc::clone(&turn),
                    made: Arc::clone(&made),
                    outcome: Arc::clone(&outcome),
                };
                tasks.spawn(worker.run());
            }
        }
        while let Some(ended) = tasks.join_next().await {
            ended??;
        }
        let outcome = std::mem::take(&mut *outcome.lock().unwrap_or_else(PoisonError::into_inner));
        for node in nodes {
            let crashes = node.kubelet.record().crashes;
            ensure!(crashes.is_empty(), "{}: {crashes:?}", node.name());
        }
        overlaps(&outcome.grants)?;
        Ok(outcome)
    }
}

struct Worker {
    contest: Contest,
    api: Api,
    node: String,
    kubelet: Kubelet,
    number: usize,
    random: Random,
    turn: Arc<tokio::sync::Mutex<()>>,
    made: Arc<AtomicUsize>,
    outcome: Arc<Mutex<Outcome>>,
}

impl Worker {
    async fn run(mut self) -> Result<()> {
        for round in 0_u64.. {
            let made = self.made.load(Ordering::Relaxed);
            if made >= self.contest.claims {
                return Ok(());
            }
            let all = u64::try_from(self.contest.instances.len())?;
            let wanted = u64::try_from(self.contest.wanted)?;
            let place = (u64::try_from(made)? / TURN + self.random.below(wanted)) % all;
            let instance = self.contest.instances.get(usize::try_from(place)?);
            let instance = instance.context("no Instance")?.clone();
            let name = format!("pod-{}-{round}", self.number);
            let spec = PodSpec::asking(&name, &format!("akri.sh/{instance}"), 1);
            let turn = self.turn.lock().await;
            let begun = Instant::now();
            let (uid, admitted) = self.kubelet.run_pod(&spec).await?;
            drop(turn);
            match admitted {
                Ok(()) => self.hold(&instance, &uid, begun).await?,
                Err(Refusal::Plugin {
                    call: "Allocate", ..
                }) => self.note(|outcome| outcome.refused += 1),
                // A scheduler would have seen that the node has no free device.
                Err(Refusal::NoneHealthy(_) | Refusal::TooFew { .. }) => {
                    tokio::time::sleep(AGAIN).await;
                }
                Err(other) => bail!("{}: {other}", self.node),
            }
            self.kubelet.delete_pod(&uid)?;
        }
        Ok(())
    }

    async fn hold(&mut self, instance: &str, uid: &str, begun: Instant) -> Result<()> {
        let from = Instant::now();
        let made = self.made.fetch_add(1, Ordering::Relaxed);
        if made.is_multiple_of(RECORDED) {
            self.kubelet.forget_record();
        }
        let given = self
            .kubelet
            .held(uid, "main", &format!("akri.sh/{instance}"));
        let slot = given
            .into_iter()
            .next()
            .context("a pod was admitted without its device")?;
        let (least, most) = self.contest.lasts;
        let lasts = least + self.random.below(most - least);
        tokio::time::sleep(Duration::from_millis(lasts)).await;
        let asks = self.random.below(self.contest.asks) == 0;
        if asks {
            let (api, path) = (
                self.api.clone(),
                format!("{}/{instance}", instances_path(&self.contest.space)),
            );
            let now = spawn_blocking(move || api.get(&path)).await??;
            let holder = holders(&now).remove(&slot);
            ensure!(
                holder.as_deref() == Some(&self.node),
                "{slot} is given on {} and has {holder:?}",
                self.node
            );
        }
        let grant = Grant {
            slot,
            node: self.node.clone(),
            from,
            until: Instant::now(),
        };
        self.note(|outcome| {
            outcome.grants.push(grant);
            outcome.waits.push(from - begun);
            outcome.asked += usize::from(asks);
        });
        Ok(())
    }

    fn note(&self, what: impl FnOnce(&mut Outcome)) {
        what(&mut self.outcome.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

/// Fails if a slot was allocated on a node before another node freed it.
pub fn overlaps(grants: &[Grant]) -> Result<()> {
    let mut sorted: Vec<&Grant> = grants.iter().collect();
    sorted.sort_by_key(|grant| grant.from);
    // End of the last grant, by slot and node.
    let mut ends: BTreeMap<&str, BTreeMap<&str, Instant>> = BTreeMap::new();
    for grant in sorted {
        let ends = ends.entry(&grant.slot).or_default();
        for (node, end) in &*ends {
            ensure!(
                *node == grant.node || *end <= grant.from,
                "{} was given on {} while {node} had it",
                grant.slot,
                grant.node
            );
        }
        let end = ends.entry(&grant.node).or_insert(grant.until);
        *end = grant.until.max(*end);
    }
    Ok(())
}

/// Fails if more than `capacity` grants of one slot, or of one device, overlap.
pub fn crowds(grants: &[Grant], capacity: usize) -> Result<()> {
    let mut by_slot: BTreeMap<&str, Vec<&Grant>> = BTreeMap::new();
    for grant in grants {
        by_slot.entry(&grant.slot).or_default().push(grant);
    }
    for (slot, grants) in by_slot {
        for one in &grants {
            let at_once = grants
                .iter()
                .filter(|other| other.from <= one.from && one.from < other.until);
            let at_once: Vec<_> = at_once.collect();
            ensure!(
                at_once.len() <= capacity,
                "{slot} was given {} times at once: {at_once:#?}",
                at_once.len()
            );
        }
    }
    Ok(())
}

/// Waits until the Instances of a namespace have the slots that these nodes' kubelets have allocated, each to one node, and no others; returns them.
pub fn agreed(api: &Api, space: &str, nodes: &[&StandInNode]) -> Result<Holders> {
    let what = "the Instances have the slots of all pods and no others";
    eventually(what, || {
        let list = api.get(&instances_path(space))?;
        let all = list.get("items").and_then(Value::as_array);
        let now: Holders = all.into_iter().flatten().flat_map(holders).collect();
        let mut given = Holders::new();
        for node in nodes {
            for slot in node.kubelet.all_held() {
                let other = given.insert(slot.clone(), node.name().to_owned());
                ensure!(
                    other.is_none_or(|other| other == node.name()),
                    "{slot} is given on {} and on another node",
                    node.name()
                );
            }
        }
        ensure!(
            now == given,
            "the Instances have {now:?}, the kubelets {given:?}"
        );
        Ok(now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_given_twice_at_a_time_is_found() {
        let begin = Instant::now();
        let grant = |node: &str, from: u64, until: u64| Grant {
            slot: "a-0".to_owned(),
            node: node.to_owned(),
            from: begin + Duration::from_millis(from),
            until: begin + Duration::from_millis(until),
        };
        assert!(
            overlaps(&[
                grant("m", 0, 9),
                grant("m", 3, 5),
                grant("n", 9, 12),
                grant("m", 12, 13)
            ])
            .is_ok()
        );
        assert!(overlaps(&[grant("m", 0, 9), grant("m", 3, 5), grant("n", 8, 12)]).is_err());
        assert!(overlaps(&[grant("n", 4, 5), grant("m", 0, 6)]).is_err());
        let two = [grant("m", 0, 9), grant("m", 3, 5), grant("n", 5, 12)];
        assert!(crowds(&two, 2).is_ok() && crowds(&two, 1).is_err());
    }
}
