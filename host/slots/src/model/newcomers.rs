//! Instances that were made a moment ago, or of which a namesake in another namespace has just gone. What was deleted has slots that pods of
//! several nodes hold: each node claims its own again first, and only then are slots given to others. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::InstanceSet;
use tokio::time::Instant;

/// How long no slot of a new Instance is given, from when this node sees it.
pub const WAIT: Duration = Duration::from_secs(5);
/// An Instance of this age is not new, whenever this node begins to see it.
const SETTLED: SignedDuration = SignedDuration::from_mins(1);

/// The Instances that are new here.
#[derive(Debug, Default)]
pub struct Newcomers {
    /// The uids of the shared Instances.
    known: BTreeMap<InstanceKey, String>,
    /// By uid, until when.
    waiting: BTreeMap<String, Instant>,
    /// The uids of those that wait.
    uids: BTreeSet<String>,
}

impl Newcomers {
    /// Takes in what the store shows now, at `now` of both clocks. What an earlier agent remembered is not new.
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

    /// Ends all waits: there is no other node whose pods could have a slot. Returns whether there were any.
    pub fn end(&mut self) -> bool {
        self.waiting.clear();
        !std::mem::take(&mut self.uids).is_empty()
    }

    /// Forgets those whose time is over; whether there were any.
    pub fn expire(&mut self, now: Instant) -> bool {
        if !self.waiting.is_empty() {
            let known: BTreeSet<&String> = self.known.values().collect();
            self.waiting
                .retain(|uid, until| *until > now && known.contains(uid));
        }
        let before = self.uids.len();
        self.uids = self.waiting.keys().cloned().collect();
        before != self.uids.len()
    }

    /// The uids of those of which no slot is given.
    pub fn uids(&self) -> &BTreeSet<String> {
        &self.uids
    }

    /// When the first of them is new no more.
    pub fn next(&self) -> Option<Instant> {
        self.waiting.values().min().copied()
    }
}
