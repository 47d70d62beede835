//! What was written lately, so that neither a refusal nor an agent that writes the opposite makes many requests. Does no I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::{Instance, InstanceKey};
use tokio::time::Instant;

use crate::release::{self, Absence};
use crate::releasing::{Earliest, WRITE_AGAIN};

/// An agent that runs on although its node is gone writes back what was released. It is contradicted at most so often.
const RELEASE_AGAIN: Duration = Duration::from_mins(1);

/// By Instance.
#[derive(Debug, Default)]
pub struct Attempts(BTreeMap<InstanceKey, Attempt>);

#[derive(Debug, Default)]
struct Attempt {
    /// The Instance is left alone until then; with a version, only as long as it has that.
    pause: Option<(Option<String>, Instant)>,
    /// The nodes that were removed from it, and how long they are not removed again.
    released: BTreeMap<String, Instant>,
}

impl Attempts {
    /// Forgets what is over.
    pub fn forget(&mut self, now: Instant) {
        self.0.retain(|_, attempt| {
            attempt.released.retain(|_, until| *until > now);
            attempt.pause.take_if(|(_, until)| *until <= now);
            attempt.pause.is_some() || !attempt.released.is_empty()
        });
    }

    /// Until when an Instance is left alone.
    pub fn paused(&self, instance: &Instance) -> Option<Instant> {
        let (version, until) = self.0.get(&instance.key())?.pause.as_ref()?;
        let has_it = |version: &String| *version == instance.metadata.resource_version;
        version.as_ref().is_none_or(has_it).then_some(*until)
    }

    /// Whether the node was removed from the Instance a moment ago.
    pub fn is_released(&self, instance: &Instance, node: &str) -> bool {
        let attempt = self.0.get(&instance.key());
        attempt.is_some_and(|attempt| attempt.released.contains_key(node))
    }

    /// The absent nodes of an Instance, without those that were removed from it a moment ago.
    pub fn without_released<'a>(
        &self,
        instance: &Instance,
        absent: &'a BTreeMap<String, Absence>,
        next: &mut Earliest,
    ) -> BTreeMap<&'a str, Absence> {
        let attempt = self.0.get(&instance.key());
        let mut left = BTreeMap::new();
        for node in release::nodes(instance) {
            if let Some(until) = attempt.and_then(|attempt| attempt.released.get(node)) {
                next.by(*until);
            } else if let Some((node, absence)) = absent.get_key_value(node) {
                left.insert(node.as_str(), absence.clone());
            }
        }
        left
    }

    /// The Instance was written without these nodes.
    pub fn written(&mut self, instance: &Instance, nodes: &BTreeSet<&str>) {
        self.outdated(instance);
        let until = Instant::now() + RELEASE_AGAIN;
        let attempt = self.0.entry(instance.key()).or_default();
        let nodes = nodes.iter().map(|node| ((*node).to_owned(), until));
        attempt.released.extend(nodes);
    }

    /// There is a newer version of the Instance.
    pub fn outdated(&mut self, instance: &Instance) {
        let version = instance.metadata.resource_version.clone();
        self.pause(instance, Some(version));
    }

    /// The Instance could not be written.
    pub fn refused(&mut self, instance: &Instance) {
        self.pause(instance, None);
    }

    fn pause(&mut self, instance: &Instance, version: Option<String>) {
        let attempt = self.0.entry(instance.key()).or_default();
        attempt.pause = Some((version, Instant::now() + WRITE_AGAIN));
    }
}
