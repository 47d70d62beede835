//! Releases reservations of pods that are gone, have ended, run on another node, or are not bound. The API server is asked about the pod first, so a
//! stale cache releases nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::scheduling::{NodeLock, Pod, PodKey};
use tokio::time::Instant;

use crate::scheduler::{Scheduler, State};
use crate::world::Reservation;

/// Time after which the reservation or lock of a pod that is still not bound expires.
pub const UNBOUND: Duration = Duration::from_secs(30);
/// Time within which agents report that a container has a slot. Until then, a container of a pod that is gone may still run with it.
pub const SHOWN: Duration = Duration::from_secs(2);
/// Pause before a failed read or write is repeated.
const AGAIN: Duration = Duration::from_secs(5);

/// Fate of a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Reserved for as long as nothing changes.
    Stays,
    /// Reserved until this instant, when it is judged again.
    StaysUntil(Instant),
    /// Over, for this reason.
    Over(&'static str),
}

impl Reservation {
    /// Judges the reservation by the pod that has the name now. `since` is when the reservation was first judged; `has_own` returns true if a pod of
    /// another uid has reservations of its own on the node.
    pub fn judge(
        &self,
        pod: Option<&Pod>,
        since: Instant,
        now: Instant,
        has_own: impl Fn(&Pod) -> bool,
    ) -> Verdict {
        match pod {
            None if since + SHOWN > now => Verdict::StaysUntil(since + SHOWN),
            None => Verdict::Over("gone"),
            Some(pod) if pod.uid == self.uid => {
                if pod.has_ended {
                    Verdict::Over("ended")
                } else if pod.node == self.node {
                    Verdict::Stays
                } else if !pod.node.is_empty() {
                    Verdict::Over("elsewhere")
                } else if since + UNBOUND <= now {
                    Verdict::Over("unbound")
                } else {
                    Verdict::StaysUntil(since + UNBOUND)
                }
            }
            // The kubelet does not distinguish the two pods: the new one may have got the devices.
            Some(pod) if pod.node == self.node && !has_own(pod) => Verdict::Stays,
            Some(_) if since + SHOWN > now => Verdict::StaysUntil(since + SHOWN),
            Some(_) => Verdict::Over("replaced"),
        }
    }
}

impl State {
    /// Judges a reservation by the pod that has the name now.
    fn judge(&mut self, one: &Reservation, pod: Option<&Pod>, now: Instant) -> Verdict {
        // The agent of the node knows when the container that holds the slot ends.
        if one.is_held || self.binding.contains(&one.uid) {
            return Verdict::Stays;
        }
        let since = *self.unbound.entry(one.uid.clone()).or_insert(now);
        let world = &self.world;
        let has_own = |pod: &Pod| {
            let all = world.reserved_for(&pod.uid);
            all.iter().any(|other| other.node == one.node)
        };
        one.judge(pod, since, now, has_own)
    }
}

impl Scheduler {
    /// Releases the reservations that have expired; returns the time of the next check.
    pub(crate) async fn release_over(&self) -> Option<Instant> {
        let now = Instant::now();
        let (mut next, mut is_done) = (None::<Instant>, true);
        let mut uncertain: BTreeMap<PodKey, Vec<Reservation>> = BTreeMap::new();
        {
            let state = &mut *self.state();
            if !state.world.is_read() {
                return None;
            }
            let world = &state.world;
            let locking = world.locks.iter().flatten();
            let locking = locking.filter_map(|(_, seen)| Some(NodeLock::read(&seen.lock)?.uid));
            let locking: BTreeSet<String> = locking.collect();
            state
                .unbound
                .retain(|uid, _| locking.contains(uid) || !world.reserved_for(uid).is_empty());
            if !state.unanswered.is_empty() {
                let uids: BTreeSet<&String> = world.pods().values().map(|pod| &pod.uid).collect();
                state.unanswered.retain(|(uid, _)| uids.contains(uid));
            }
            let all = world.reserved().filter(|one| !world.is_of_bound_pod(one));
            let all: Vec<Reservation> = all.cloned().collect();
            for one in all {
                let pod = state.world.pods().get(&one.pod).cloned();
                match state.judge(&one, pod.as_ref(), now) {
                    Verdict::Stays => {}
                    Verdict::StaysUntil(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    Verdict::Over(_) => {
                        let all = uncertain.entry(one.pod.clone()).or_default();
                        all.push(one);
                    }
                }
            }
        }
        for (key, all) in uncertain {
            let Ok(pod) = self.cluster.pod(&key).await else {
                is_done = false;
                continue;
            };
            let mut over: BTreeMap<&'static str, Vec<Reservation>> = BTreeMap::new();
            {
                let state = &mut *self.state();
                for one in all {
                    if let Verdict::Over(why) = state.judge(&one, pod.as_ref(), now) {
                        over.entry(why).or_default().push(one);
                    }
                }
            }
            for (why, all) in over {
                is_done &= self.release(all, why).await;
            }
        }
        let again = (!is_done).then_some(now + AGAIN);
        next.into_iter().chain(again).min()
    }
}
