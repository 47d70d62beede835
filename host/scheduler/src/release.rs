//! Gives back what was reserved for pods that are gone, have ended, run elsewhere, or are not bound. An old cache decides nothing: the API server is
//! asked about the pod first.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::Edit;
use leafhost_core::scheduling::{NodeLock, Pod, PodKey};
use leafhost_core::slot::DeviceUsage;
use tokio::time::Instant;

use crate::scheduler::{Scheduler, State};
use crate::world::Reservation;

/// A pod that has devices is bound within this.
pub const UNBOUND: Duration = Duration::from_secs(30);
/// Agents show within this that a container has a slot: until then a pod that is gone may have one that runs.
pub const SHOWN: Duration = Duration::from_secs(2);
/// Separates two questions about a pod that could not be answered.
const AGAIN: Duration = Duration::from_secs(5);

/// Says what a reservation is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It stays.
    Stays,
    /// It stays until then at least.
    StaysUntil(Instant),
    /// It is over.
    Over(&'static str),
}

impl Reservation {
    /// Returns the edit that gives the slot back.
    pub fn given_back(&self) -> Edit {
        Edit::Slot {
            id: self.slot.clone(),
            held: DeviceUsage::Pod {
                uid: self.uid.clone(),
                node: self.node.clone(),
            },
            new: DeviceUsage::Unused,
        }
    }

    /// Judges it by the pod that has the name now. `since` is when it was first seen that the pod waits, `has_own` tells that a pod of another uid
    /// has devices of its own on the node.
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
            // The kubelet does not tell the two apart: the new one may have got the devices.
            Some(pod) if pod.node == self.node && !has_own(pod) => Verdict::Stays,
            Some(_) if since + SHOWN > now => Verdict::StaysUntil(since + SHOWN),
            Some(_) => Verdict::Over("replaced"),
        }
    }
}

impl State {
    /// Judges a reservation by a pod.
    fn judge(&mut self, one: &Reservation, pod: Option<&Pod>, now: Instant) -> Verdict {
        // The agent of the node knows when a container that has it ends.
        if one.is_held || self.binding.contains(&one.uid) {
            return Verdict::Stays;
        }
        let since = *self.unbound.entry(one.uid.clone()).or_insert(now);
        let world = &self.world;
        let has_own = |pod: &Pod| {
            let mut all = world.reserved();
            all.any(|other| other.uid == pod.uid && other.node == one.node)
        };
        one.judge(pod, since, now, has_own)
    }
}

impl Scheduler {
    /// Gives back what is over; returns when to look again.
    pub(crate) async fn release_over(&self) -> Option<Instant> {
        let now = Instant::now();
        let (mut next, mut doubtful) = (None::<Instant>, BTreeMap::new());
        {
            let state = &mut *self.state();
            if !state.world.is_read() {
                return None;
            }
            let all: Vec<Reservation> = state.world.reserved().cloned().collect();
            let uids = all.iter().map(|one| one.uid.clone());
            let locking = state.world.locks().into_iter().flatten();
            let locking = locking.filter_map(|(_, seen)| Some(NodeLock::read(&seen.lock)?.uid));
            let uids: BTreeSet<String> = uids.chain(locking).collect();
            state.unbound.retain(|uid, _| uids.contains(uid));
            for one in &all {
                let key = PodKey::read(&one.pod).unwrap_or_default();
                let pod = state.world.pods().get(&key).cloned();
                match state.judge(one, pod.as_ref(), now) {
                    Verdict::Stays => {}
                    Verdict::StaysUntil(at) => next = Some(next.map_or(at, |next| next.min(at))),
                    Verdict::Over(_) => {
                        doubtful
                            .entry(key)
                            .or_insert_with(Vec::new)
                            .push(one.clone());
                    }
                }
            }
        }
        for (key, all) in doubtful {
            let Ok(pod) = self.cluster.pod(&key).await else {
                next = Some(next.map_or(now + AGAIN, |next| next.min(now + AGAIN)));
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
                if !self.release(all, why).await {
                    next = Some(next.map_or(now + AGAIN, |next| next.min(now + AGAIN)));
                }
            }
        }
        next
    }
}
