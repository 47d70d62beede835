//! Instances that were created moments ago, or whose namesake in another namespace has just gone. Pods of several nodes may hold slots of
//! the deleted Instance: each node first claims its own again, and only then are slots allocated to other pods. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::InstanceSet;
use tokio::time::Instant;

/// Time, from when this node first sees a new Instance, during which none of its slots is allocated.
pub const WAIT: Duration = Duration::from_secs(5);
/// Age from which an Instance is not new, whenever this node begins to see it.
const SETTLED: SignedDuration = SignedDuration::from_mins(1);

/// Instances that are new to this node.
#[derive(Debug, Default)]
pub struct Warmup {
    /// Uids of the shared Instances.
    known: BTreeMap<InstanceKey, String>,
    /// End of the wait by uid.
    waiting: BTreeMap<String, Instant>,
}

impl Warmup {
    /// Records the Instances of the store. `now` and `wall` are the current time by the monotonic and the wall clock. Instances that an
    /// earlier agent remembered are not new.
    pub fn update(&mut self, set: &InstanceSet, now: Instant, wall: Timestamp) {
        let gone = self.known.keys();
        let gone = gone.filter(|key| !set.instances.contains_key(key));
        let gone: BTreeSet<&str> = gone.map(|key| key.name.as_str()).collect();
        let shared = set.instances.iter().filter(|(_, one)| one.spec.shared);
        let mut known = BTreeMap::new();
        for (key, instance) in shared {
            let uid = &instance.metadata.uid;
            let made = instance.metadata.creation_timestamp.as_deref();
            let is_old = made
                .and_then(|made| made.parse::<Timestamp>().ok())
                .is_some_and(|made| wall.duration_since(made) >= SETTLED);
            let is_known = self.known.get(key) == Some(uid);
            let is_new = !is_known && !is_old && !set.remembered;
            if is_new || gone.contains(key.name.as_str()) {
                self.waiting.insert(uid.clone(), now + WAIT);
            }
            known.insert(key.clone(), uid.clone());
        }
        self.known = known;
        self.expire(now);
    }

    /// Ends all waits: no other node exists whose pods could have a slot. Returns true if an Instance waited.
    pub fn end(&mut self) -> bool {
        !std::mem::take(&mut self.waiting).is_empty()
    }

    /// Forgets Instances whose wait has ended; returns true if there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        if self.waiting.is_empty() {
            return false;
        }
        let before = self.waiting.len();
        let known: BTreeSet<&String> = self.known.values().collect();
        self.waiting
            .retain(|uid, until| *until > now && known.contains(uid));
        before != self.waiting.len()
    }

    /// Returns the ends of the waits, by uid of the Instance.
    pub fn waiting(&self) -> &BTreeMap<String, Instant> {
        &self.waiting
    }

    /// Returns the end of the first wait.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.values().min().copied()
    }
}

#[cfg(test)]
mod tests;
