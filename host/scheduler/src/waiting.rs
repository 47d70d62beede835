//! Has waiting pods tried again when devices that fit become free: a scheduler does not know our objects, and nothing else would wake it.

use std::collections::HashMap;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::scheduling::{Pod, TRIED_AGAIN};
use tokio::time::Instant;

use crate::filter::Judge;
use crate::scheduler::Scheduler;
use crate::world::Number;

/// Separates two tries of one pod.
const SPACING: Duration = Duration::from_secs(5);
/// The most pods that are tried again together.
const TOGETHER: usize = 50;
/// The most pods that are looked at together.
const LOOKED_AT: usize = 500;

impl Scheduler {
    /// Writes an annotation on the pods that would find devices now; returns when to look again.
    pub(crate) async fn try_again(&self) -> Option<Instant> {
        let now = Instant::now();
        let mut next = None::<Instant>;
        let mut found: Vec<Pod> = Vec::new();
        {
            let state = &mut *self.state();
            if !state.world.has_instances || !state.world.has_pods {
                return None;
            }
            let waits = |pod: &&Pod| {
                pod.node.is_empty() && !pod.has_ended && !pod.is_gated && pod.is_refused
            };
            let waiting = state.world.pods.values().filter(waits);
            let waiting: Vec<Pod> = waiting.take(LOOKED_AT).cloned().collect();
            let nodes: Vec<String> = state.world.nodes().cloned().collect();
            let mut taken: HashMap<String, Vec<Number>> = HashMap::new();
            for (node, devices) in state.passed.taken("", now) {
                taken.insert(node.to_owned(), devices);
            }
            for pod in waiting {
                if found.len() >= TOGETHER {
                    next = Some(now + SPACING);
                    break;
                }
                let is_passing = state.passed.is_recent(&pod.uid, now);
                if is_passing || state.binding.contains(&pod.uid) {
                    continue;
                }
                let Ok(asked) = state.asked(&pod) else {
                    continue;
                };
                let mut judge = Judge::new(&state.world, &mut state.verdicts, &pod.uid, &asked);
                let none = Vec::new();
                let fits = nodes.iter().find_map(|node| {
                    let taken = taken.get(node).unwrap_or(&none);
                    let devices = judge.take(node, taken).ok()?.devices;
                    Some((node.clone(), devices))
                });
                let Some((place, devices)) = fits else {
                    continue;
                };
                if let Some(tried) = state.tried.get(&pod.uid)
                    && *tried + SPACING > now
                {
                    let at = *tried + SPACING;
                    next = Some(next.map_or(at, |next| next.min(at)));
                    continue;
                }
                // What this one will take helps no other.
                taken.entry(place).or_default().extend(devices);
                state.tried.retain(|_, tried| *tried + SPACING > now);
                state.tried.insert(pod.uid.clone(), now);
                found.push(pod);
            }
        }
        for pod in found {
            let at = Timestamp::now().to_string();
            let written = self
                .cluster
                .annotate(&pod.key, &pod.uid, TRIED_AGAIN, &at)
                .await;
            match written {
                Ok(()) => self.metrics.tried_again(),
                Err(error) => {
                    tracing::debug!(pod = %pod.key, %error, "a waiting pod is not tried again");
                }
            }
        }
        next
    }
}
