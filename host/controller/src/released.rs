//! Remembers the nodes that Instances were written without, so that an agent that writes back what was released is not contradicted at once.
//! Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::{Instance, InstanceKey};
use tokio::time::Instant;

use crate::pace::Earliest;
use crate::release::{self, Absence};

/// An agent that runs on although its node is gone writes back what was released. It is contradicted at most so often.
const RELEASE_AGAIN: Duration = Duration::from_mins(1);

/// Maps the nodes that were removed from an Instance to how long they are not removed again.
#[derive(Debug, Default)]
pub struct Released(BTreeMap<InstanceKey, BTreeMap<String, Instant>>);

impl Released {
    /// Forgets what is over.
    pub fn forget(&mut self, now: Instant) {
        self.0.retain(|_, nodes| {
            nodes.retain(|_, until| *until > now);
            !nodes.is_empty()
        });
    }

    /// Notes that an Instance was written without these nodes.
    pub fn note(&mut self, instance: &Instance, nodes: &BTreeSet<&str>, now: Instant) {
        let nodes = nodes
            .iter()
            .map(|node| ((*node).to_owned(), now + RELEASE_AGAIN));
        self.0.entry(instance.key()).or_default().extend(nodes);
    }

    /// Tells whether the node was removed from the Instance a moment ago.
    pub fn has(&self, instance: &Instance, node: &str) -> bool {
        let nodes = self.0.get(&instance.key());
        nodes.is_some_and(|nodes| nodes.contains_key(node))
    }

    /// Returns the absent nodes of an Instance, without those that were removed from it a moment ago.
    pub fn without<'a>(
        &self,
        instance: &Instance,
        absent: &'a BTreeMap<String, Absence>,
        next: &mut Earliest,
    ) -> BTreeMap<&'a str, Absence> {
        let released = self.0.get(&instance.key());
        let mut left = BTreeMap::new();
        for node in release::nodes(instance) {
            if let Some(until) = released.and_then(|released| released.get(node)) {
                next.by(*until);
            } else if let Some((node, absence)) = absent.get_key_value(node) {
                left.insert(node.as_str(), absence.clone());
            }
        }
        left
    }
}
