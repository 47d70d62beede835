//! Makes schedulers retry waiting pods when suitable devices become free: a scheduler does not know the project's objects, and nothing else
//! would wake it.
//!
//! The search for devices for a pod covers all nodes once, and afterwards the nodes whose devices have changed in favour of pods.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use leafhost_core::scheduling::{Pod, PodKey};
use tokio::time::Instant;

use crate::filter::Evaluator;
use crate::scheduler::{Scheduler, State};
use crate::world::Number;

/// Minimum time between two retries of one pod.
const SPACING: Duration = Duration::from_secs(5);
/// Pause before looking again at a pod whose devices others are about to take.
const TAKEN: Duration = Duration::from_secs(1);
/// Maximum number of pods that are retried together.
const TOGETHER: usize = 50;

/// Devices that pods are about to take, by node.
type TakenByNode = HashMap<String, Vec<Number>>;

/// Outcome of one search for devices for a waiting pod.
enum Outcome {
    /// No devices fit.
    Waits,
    /// Devices may fit at this instant.
    Later(Instant),
    /// Devices fit now.
    Fits,
}

impl State {
    /// Looks for devices for a waiting pod on `nodes`.
    fn look(
        &mut self,
        pod: &Pod,
        nodes: &BTreeSet<String>,
        taken: &mut TakenByNode,
        now: Instant,
    ) -> Outcome {
        if self.filtered.is_recent(&pod.uid, now) || self.binding.contains(&pod.uid) {
            return Outcome::Later(now + SPACING);
        }
        let Ok(asked) = self.asked(pod) else {
            return Outcome::Waits;
        };
        let mut evaluator = Evaluator::new(&self.world, &mut self.verdicts, &pod.uid, &asked);
        let none = Vec::new();
        let mut is_taken = false;
        let nodes = nodes.iter();
        let mut nodes = nodes.filter(|node| self.offered.has(&pod.uid, node));
        let found = nodes.find_map(|node| {
            let others = taken.get(node).unwrap_or(&none);
            let devices = evaluator.take(node, others).ok().map(|found| found.devices);
            is_taken |=
                devices.is_none() && !others.is_empty() && evaluator.take(node, &none).is_ok();
            Some((node.clone(), devices?))
        });
        let Some((place, devices)) = found else {
            return if is_taken {
                Outcome::Later(now + TAKEN)
            } else {
                Outcome::Waits
            };
        };
        let again = self.tried.get(&pod.uid).map(|tried| *tried + SPACING);
        if let Some(again) = again.filter(|again| *again > now) {
            return Outcome::Later(again);
        }
        // Other pods cannot have the devices that this pod will take. A pod that no scheduler has asked about may lack something else, so it takes
        // none.
        if self.offered.is_known(&pod.uid) {
            taken.entry(place).or_default().extend(devices);
        }
        self.tried.insert(pod.uid.clone(), now);
        Outcome::Fits
    }
}

impl Scheduler {
    /// Annotates the waiting pods that would find devices now, so that a scheduler retries them; returns the time of the next search.
    pub(crate) async fn try_again(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None::<Instant>;
        let mut found: Vec<Pod> = Vec::new();
        {
            let state = &mut *self.state();
            if !state.world.is_read() {
                return None;
            }
            state.tried.retain(|_, tried| *tried + SPACING > now);
            let better = std::mem::take(&mut state.better);
            let unlooked = std::mem::take(&mut state.unlooked);
            let taken = state.filtered.taken("", now).into_iter();
            let mut taken: TakenByNode = taken.map(|(node, all)| (node.to_owned(), all)).collect();
            let waiting =
                state.world.pods().iter().filter(|(key, pod)| {
                    waits(pod) && (unlooked.contains(*key) || !better.is_empty())
                });
            let waiting: Vec<(PodKey, Pod)> = waiting
                .map(|(key, pod)| (key.clone(), pod.clone()))
                .collect();
            let mut all = BTreeSet::new();
            if waiting.iter().any(|(key, _)| unlooked.contains(key)) {
                all.extend(state.world.nodes().cloned());
            }
            for (key, pod) in waiting {
                let is_new = unlooked.contains(&key);
                let nodes = if is_new { &all } else { &better };
                let outcome = if found.len() < TOGETHER {
                    state.look(&pod, nodes, &mut taken, now)
                } else {
                    Outcome::Later(now + SPACING)
                };
                match outcome {
                    Outcome::Waits => {}
                    Outcome::Later(at) => {
                        next = Some(next.map_or(at, |next| next.min(at)));
                        state.unlooked.insert(key);
                    }
                    Outcome::Fits => found.push(pod),
                }
            }
        }
        for pod in found {
            match self.cluster.try_again(&pod.key, &pod.uid).await {
                Ok(()) => self.metrics.tried_again(),
                Err(error) => {
                    tracing::debug!(pod = %pod.key, %error, "cannot make the scheduler retry a waiting pod");
                    let at = now + SPACING;
                    next = Some(next.map_or(at, |next| next.min(at)));
                    self.state().unlooked.insert(pod.key);
                }
            }
        }
        next
    }
}

/// Returns true if a scheduler has found no node for a pod that still waits.
fn waits(pod: &Pod) -> bool {
    pod.node.is_empty() && !pod.has_ended && !pod.is_gated && pod.is_refused
}
