//! Remembers which nodes were removed from Instances, so that the controller does not at once undo the write of an agent that adds its node
//! again. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::{Instance, InstanceKey};
use tokio::time::Instant;

use crate::pass_schedule::Earliest;
use crate::release::{self, Absence};

/// Shortest interval between two removals of the same node from an Instance. An agent that still runs although its node is gone writes its
/// entries back.
const RELEASE_AGAIN: Duration = Duration::from_mins(1);

/// Nodes that were removed from an Instance, each with the time until which it is not removed again.
#[derive(Debug, Default)]
pub struct Released(BTreeMap<InstanceKey, BTreeMap<String, Instant>>);

impl Released {
    /// Forgets the removals whose time has passed.
    pub fn forget(&mut self, now: Instant) {
        self.0.retain(|_, nodes| {
            nodes.retain(|_, until| *until > now);
            !nodes.is_empty()
        });
    }

    /// Records that nodes were removed from an Instance.
    pub fn note(&mut self, instance: &Instance, nodes: &BTreeSet<&str>, now: Instant) {
        let nodes = nodes
            .iter()
            .map(|node| ((*node).to_owned(), now + RELEASE_AGAIN));
        self.0.entry(instance.key()).or_default().extend(nodes);
    }

    /// Returns true if the node was recently removed from the Instance.
    pub fn has(&self, instance: &Instance, node: &str) -> bool {
        let nodes = self.0.get(&instance.key());
        nodes.is_some_and(|nodes| nodes.contains_key(node))
    }

    /// Returns the absent nodes of an Instance without the recently removed ones, and adds the times of those to `next`.
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
