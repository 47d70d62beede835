//! Remembers which pods have passed Filter, and what each would take: the next pod is not sent where these go.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leafhost_select::Asked;
use tokio::time::Instant;

use crate::world::Number;

/// A pod that has passed is bound within this, or it is not bound at all.
const BINDS: Duration = Duration::from_mins(1);
/// What a pod that has passed would take counts as taken for so long.
const TAKES: Duration = Duration::from_secs(5);
/// The most pods whose devices count as taken.
const MOST: usize = 200;

/// Is what a pod has passed with.
#[derive(Debug)]
struct Pass {
    at: Instant,
    /// What it asks for.
    asked: Arc<Vec<Asked>>,
    /// By node the devices that it would take there.
    takes: HashMap<String, Vec<Number>>,
}

/// Holds pods by their uid.
#[derive(Debug, Default)]
pub struct Passed(BTreeMap<String, Pass>);

impl Passed {
    /// Takes that a pod has passed.
    pub fn add(
        &mut self,
        uid: &str,
        (asked, takes): (Arc<Vec<Asked>>, HashMap<String, Vec<Number>>),
        at: Instant,
    ) {
        self.0.retain(|_, pass| pass.at + BINDS > at);
        self.0.insert(uid.to_owned(), Pass { at, asked, takes });
    }

    /// Takes that a pod is bound, or is not to be.
    pub fn remove(&mut self, uid: &str) {
        self.0.remove(uid);
    }

    /// Takes that a pod takes nothing now, but may be bound.
    pub fn take_nothing(&mut self, uid: &str) {
        if let Some(pass) = self.0.get_mut(uid) {
            pass.takes.clear();
        }
    }

    /// Returns what a pod asks for that may be bound.
    pub fn asked(&self, uid: &str, now: Instant) -> Option<Arc<Vec<Asked>>> {
        let pass = self.0.get(uid).filter(|pass| pass.at + BINDS > now);
        pass.map(|pass| Arc::clone(&pass.asked))
    }

    /// Tells that a pod has passed a moment ago.
    pub fn is_recent(&self, uid: &str, now: Instant) -> bool {
        self.0.get(uid).is_some_and(|pass| pass.at + TAKES > now)
    }

    /// Returns by node what pods other than this one would take.
    pub fn taken(&self, uid: &str, now: Instant) -> HashMap<&str, Vec<Number>> {
        let recent = self.0.iter().filter(|(other, pass)| {
            *other != uid && pass.at + TAKES > now && !pass.takes.is_empty()
        });
        let mut taken: HashMap<&str, Vec<Number>> = HashMap::new();
        for (_, pass) in recent.take(MOST) {
            for (node, devices) in &pass.takes {
                taken.entry(node).or_default().extend(devices);
            }
        }
        taken
    }
}
