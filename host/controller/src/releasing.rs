//! Releases what nodes left behind: looks at nodes and Instances whenever they change, and writes what follows.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::cluster::{Cluster, NodeSet, ReadError};
use leafhost_core::instance::Instance;
use leafhost_core::ports::{InstanceSet, StoreError};
use leafhost_core::text::chain;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::attempts::Attempts;
use crate::metrics::{Metrics, Write};
use crate::release::{self, Absence, Verdict};
use crate::task::Error;

/// How soon after a change it acts: many come together.
const SOON: Duration = Duration::from_millis(100);
/// When it looks again at a node that is away and whose pods may still use devices.
const LOOK_AGAIN: Duration = Duration::from_secs(10);
/// When it writes again after the API server did not answer.
pub const WRITE_AGAIN: Duration = Duration::from_secs(30);

/// Runs without end.
pub async fn run(cluster: &dyn Cluster, metrics: &Metrics) -> Result<(), Error> {
    let mut task = Releasing {
        cluster,
        metrics,
        leads: cluster.leads(),
        nodes: cluster.nodes(),
        instances: cluster.instances(),
        attempts: Attempts::default(),
        kept: BTreeMap::new(),
        rests: Instant::now(),
    };
    let mut next = Some(Instant::now());
    loop {
        let at = next.map(|next| next.max(task.rests));
        tokio::select! {
            changed = task.leads.changed() => changed.map_err(|_| Error("the lease"))?,
            changed = task.nodes.changed() => {
                changed.map_err(|_| Error("nodes"))?;
                task.kept.clear();
            }
            changed = task.instances.changed() => changed.map_err(|_| Error("Instances"))?,
            () = sleep_until(at.unwrap_or_else(Instant::now)), if at.is_some() => {
                next = task.pass().await;
                continue;
            }
        }
        let soon = Instant::now() + SOON;
        next = Some(next.map_or(soon, |next| next.min(soon)));
    }
}

struct Releasing<'a> {
    cluster: &'a dyn Cluster,
    metrics: &'a Metrics,
    leads: watch::Receiver<bool>,
    nodes: watch::Receiver<Arc<NodeSet>>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    attempts: Attempts,
    /// Nodes that keep what they have until they are looked at again.
    kept: BTreeMap<String, Instant>,
    /// Nothing is written before then.
    rests: Instant,
}

impl Releasing<'_> {
    /// Releases what absent nodes left behind. Returns when to look again although nothing changes.
    async fn pass(&mut self) -> Option<Instant> {
        let nodes = Arc::clone(&self.nodes.borrow_and_update());
        let instances = Arc::clone(&self.instances.borrow_and_update());
        if !*self.leads.borrow_and_update() || !nodes.complete || !instances.complete {
            return None;
        }
        let mut next = Earliest::default();
        self.attempts.forget(Instant::now());
        let absent = self.absent(&nodes, &instances, &mut next).await;
        for instance in instances.instances.values() {
            let absent = self.attempts.without_released(instance, &absent, &mut next);
            let Some(change) = release::release(instance, &absent) else {
                continue;
            };
            if let Some(until) = self.attempts.paused(instance) {
                next.by(until);
                continue;
            }
            // What was concluded holds no longer.
            if self.is_outdated() {
                return Some(Instant::now());
            }
            let outcome = self.cluster.write(instance, &change).await;
            let removed = release::removed(instance, &change);
            if let Some(wait) = self.note(instance, &removed, outcome) {
                self.rests = Instant::now() + wait;
                return Some(self.rests);
            }
            if let Some(until) = self.attempts.paused(instance) {
                next.by(until);
            }
        }
        next.0
    }

    /// Whether nodes or the lead have changed since the pass began.
    fn is_outdated(&self) -> bool {
        let is_new = |changed: Result<bool, watch::error::RecvError>| changed.unwrap_or(true);
        is_new(self.leads.has_changed()) || is_new(self.nodes.has_changed())
    }

    /// Remembers what came of a write. Returns how long to write nothing, if there was no answer.
    fn note(
        &mut self,
        instance: &Instance,
        removed: &BTreeSet<&str>,
        outcome: Result<(), StoreError>,
    ) -> Option<Duration> {
        match outcome {
            Ok(()) => {
                tracing::info!(instance = %instance.key(), gone = ?removed, "released slots and entries of nodes that are gone");
                self.metrics.released(removed.len());
                self.attempts.written(instance, removed);
                None
            }
            // Somebody was quicker: the next version shows what is there.
            Err(error) if error.is_outdated() => {
                self.attempts.outdated(instance);
                None
            }
            Err(error) => {
                let wait = match error {
                    StoreError::Denied { .. } => None,
                    StoreError::Unavailable { retry_after, .. } => {
                        Some(WRITE_AGAIN.max(retry_after.unwrap_or_default()))
                    }
                    _ => Some(WRITE_AGAIN),
                };
                let error = chain(&error);
                tracing::warn!(error, "cannot release what a node left behind");
                self.metrics.failed(Write::Instance);
                self.attempts.refused(instance);
                wait
            }
        }
    }

    /// The nodes that are gone, of those that Instances name.
    async fn absent(
        &mut self,
        nodes: &NodeSet,
        instances: &InstanceSet,
        next: &mut Earliest,
    ) -> BTreeMap<String, Absence> {
        // Each with whether an Instance that names it is shared.
        let mut named: BTreeMap<&str, bool> = BTreeMap::new();
        for instance in instances.instances.values() {
            if let Some(until) = self.attempts.paused(instance) {
                next.by(until);
                continue;
            }
            for node in release::nodes(instance) {
                if !self.attempts.is_released(instance, node) {
                    *named.entry(node).or_default() |= instance.spec.shared;
                }
            }
        }
        let mut absent = BTreeMap::new();
        for (node, is_shared) in named {
            // A node that is only away keeps its local devices.
            if !is_shared && nodes.nodes.contains_key(node) {
                continue;
            }
            if let Some(until) = self.kept.get(node).filter(|until| **until > Instant::now()) {
                next.by(*until);
                continue;
            }
            let again = Instant::now() + LOOK_AGAIN;
            match self.absence(nodes, node).await {
                Ok(Finding::Present) => {}
                Ok(Finding::PresentFor(time)) => next.by(Instant::now() + time),
                Ok(Finding::Absent(absence)) => {
                    if matches!(&absence, Absence::Away(requested) if !requested.is_empty()) {
                        self.kept.insert(node.to_owned(), again);
                        next.by(again);
                    }
                    absent.insert(node.to_owned(), absence);
                }
                Err(error) => {
                    tracing::warn!(node, %error, "cannot tell whether a node is gone; its slots stay");
                    self.kept.insert(node.to_owned(), again);
                    next.by(again);
                }
            }
        }
        absent
    }

    async fn absence(&self, nodes: &NodeSet, node: &str) -> Result<Finding, ReadError> {
        let now = Timestamp::now();
        match nodes
            .nodes
            .get(node)
            .map(|known| release::verdict(known, now))
        {
            Some(Verdict::Present) => return Ok(Finding::Present),
            Some(Verdict::PresentUntil(then)) => {
                let left = Duration::try_from(then.duration_since(now)).unwrap_or_default();
                return Ok(Finding::PresentFor(left.max(SOON)));
            }
            Some(Verdict::OutOfService | Verdict::NotReady) | None => {}
        }
        // What is known of the nodes may be old, and the Instance newer.
        let Some(state) = self.cluster.node(node).await? else {
            return Ok(Finding::Absent(Absence::Deleted));
        };
        Ok(match release::verdict(&state, now) {
            Verdict::Present | Verdict::PresentUntil(_) => Finding::PresentFor(LOOK_AGAIN),
            // Its pods are deleted by force, and none of them runs.
            Verdict::OutOfService => Finding::Absent(Absence::Away(BTreeSet::new())),
            Verdict::NotReady => {
                Finding::Absent(Absence::Away(self.cluster.requested(node).await?))
            }
        })
    }
}

enum Finding {
    Present,
    PresentFor(Duration),
    Absent(Absence),
}

/// The first of several moments.
#[derive(Debug, Default)]
pub struct Earliest(pub Option<Instant>);

impl Earliest {
    /// One of them.
    pub fn by(&mut self, moment: Instant) {
        self.0 = Some(self.0.map_or(moment, |earliest| earliest.min(moment)));
    }
}

#[cfg(test)]
mod tests;
