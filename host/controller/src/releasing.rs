//! Releases the slots and entries of absent nodes: runs a pass whenever nodes or Instances change, and writes the resulting changes.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::cluster::{Cluster, ClusterViews, NodeSet};
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet};
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::{changed, is_outdated};
use leafhost_core::write_limiter::WriteLimiter;
use tokio::time::Instant;

use crate::metrics::{Metrics, Write};
use crate::pass_schedule::{SOON, time_until};
use crate::release::{self, Absence, Verdict};
use crate::writes::{Done, PLACES, Step, Writes};

/// Interval between two checks of an absent node whose pods may still use devices.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// Time within which the watch should show a write.
const SEEN: Duration = Duration::from_secs(30);

/// An Instance as it was seen, and the change to write.
type Job = (Arc<Instance>, Change);

/// Releases devices while this controller leads.
pub async fn run(cluster: &dyn Cluster, metrics: &Metrics) {
    let views = cluster.views();
    let identify = |(seen, _): &Job| ((), seen.metadata.resource_version.clone());
    let write = move |_, (instance, change): Job| async move {
        let answer = cluster.write(&instance, &change).await;
        ((instance, change), answer)
    };
    let mut task = SlotReleaser {
        cluster,
        metrics,
        writes: Writes::new(views.leads.clone(), PLACES, (SOON, SEEN), identify, write),
        views,
        released: WriteLimiter::new(1),
        kept: BTreeMap::new(),
    };
    loop {
        tokio::select! {
            biased;
            () = changed(&mut task.views.nodes) => {
                task.kept.clear();
                task.writes.outdated();
            }
            () = changed(&mut task.views.instances) => task.writes.changed(),
            step = task.writes.step(), if !is_outdated(&task.views.nodes) => match step {
                Step::Ended(all) => all.iter().for_each(|one| task.note(one)),
                Step::Pass => task.look().await,
            },
        }
    }
}

struct SlotReleaser<'a> {
    cluster: &'a dyn Cluster,
    metrics: &'a Metrics,
    views: ClusterViews,
    /// Writes by Instance, each with the resource version that was seen.
    writes: Writes<'a, InstanceKey, Job, (), String>,
    /// Limiter of repeated removals: an agent that still runs although its node is gone writes its entries back.
    released: WriteLimiter<(InstanceKey, String)>,
    /// Nodes that keep their slots until the next check.
    kept: BTreeMap<String, Instant>,
}

impl SlotReleaser<'_> {
    /// Plans the release of the slots and entries of absent nodes.
    async fn look(&mut self) {
        let nodes = Arc::clone(&self.views.nodes.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        if !self.writes.leads() || !nodes.complete || !instances.complete {
            return;
        }
        let absent = self.absent(&nodes, &instances).await;
        let mut jobs = Vec::new();
        for (key, instance) in &instances.instances {
            let change = release::release(instance, &self.left(instance, &absent));
            let job = change.map(|change| (Arc::clone(instance), change));
            jobs.extend(job.map(|job| (key.namespace.clone(), key.clone(), job)));
        }
        self.writes.plan(jobs, None, |_, _| None);
    }

    /// Returns the time until which an Instance must not be written.
    fn later(&self, instance: &Instance) -> Option<Instant> {
        let version = &instance.metadata.resource_version;
        let (key, now) = (instance.key(), Instant::now());
        self.writes.attempts.later(&key, &(), version, now)
    }

    /// Returns the time until which a node that was removed from an Instance must not be removed again.
    fn again(&self, instance: &Instance, node: &str) -> Option<Instant> {
        let key = (instance.key(), node.to_owned());
        self.released.next(&key, Instant::now())
    }

    /// Returns the absent nodes of an Instance without those that were just removed from it.
    fn left<'b>(
        &self,
        instance: &Instance,
        absent: &'b BTreeMap<String, Absence>,
    ) -> BTreeMap<&'b str, Absence> {
        let nodes = release::nodes(instance).into_iter();
        let absent = nodes.filter_map(|node| absent.get_key_value(node));
        let left = absent.filter(|(node, _)| self.again(instance, node).is_none());
        left.map(|(node, absence)| (node.as_str(), absence.clone()))
            .collect()
    }

    /// Records the outcome of a write.
    fn note(&mut self, done: &Done<InstanceKey, Job>) {
        let (instance, change) = &done.value;
        match &done.answer {
            Ok(()) => {
                let removed = release::removed(instance, change);
                tracing::info!(instance = %instance.key(), gone = ?removed, "released slots and entries of nodes that are gone");
                self.metrics.released(removed.len());
                for node in removed {
                    let key = (instance.key(), node.to_owned());
                    self.released.record(key, done.at);
                }
            }
            // Another writer changed the Instance first: the next version shows the state.
            Err(WriteError::Outdated) => {}
            Err(error) => {
                tracing::warn!(instance = %instance.key(), %error, "cannot release what a node left behind");
                self.metrics.failed(Write::Instance);
            }
        }
    }

    /// Returns the absent nodes among those that Instances name.
    async fn absent(
        &mut self,
        nodes: &NodeSet,
        instances: &InstanceSet,
    ) -> BTreeMap<String, Absence> {
        // Named nodes; true if an Instance that names the node is shared.
        let mut named: BTreeMap<&str, bool> = BTreeMap::new();
        for instance in instances.instances.values() {
            if let Some(until) = self.later(instance) {
                self.writes.passes.by(until);
                continue;
            }
            for node in release::nodes(instance) {
                if let Some(until) = self.again(instance, node) {
                    self.writes.passes.by(until);
                } else {
                    *named.entry(node).or_default() |= instance.spec.shared;
                }
            }
        }
        let mut absent = BTreeMap::new();
        for (node, is_shared) in named {
            // A node that is away keeps its local devices.
            if !is_shared && nodes.nodes.contains_key(node) {
                continue;
            }
            if let Some(until) = self.kept.get(node).filter(|until| **until > Instant::now()) {
                self.writes.passes.by(*until);
                continue;
            }
            let again = Instant::now() + LOOK_AGAIN;
            match absence(self.cluster, nodes, node).await {
                Ok(Finding::Present) => {}
                Ok(Finding::PresentFor(time)) => self.writes.passes.by(Instant::now() + time),
                Ok(Finding::Absent(absence)) => {
                    if matches!(&absence, Absence::Away(requested) if !requested.is_empty()) {
                        self.kept.insert(node.to_owned(), again);
                        self.writes.passes.by(again);
                    }
                    absent.insert(node.to_owned(), absence);
                }
                Err(error) => {
                    tracing::warn!(node, %error, "cannot determine whether a node is gone; its slots stay");
                    self.kept.insert(node.to_owned(), again);
                    self.writes.passes.by(again);
                }
            }
        }
        absent
    }
}

/// Checks whether a node is gone.
async fn absence(cluster: &dyn Cluster, nodes: &NodeSet, node: &str) -> Result<Finding, String> {
    let now = Timestamp::now();
    match nodes
        .nodes
        .get(node)
        .map(|known| release::verdict(known, now))
    {
        Some(Verdict::Present) => return Ok(Finding::Present),
        Some(Verdict::PresentUntil(then)) => {
            return Ok(Finding::PresentFor(time_until(then, now)));
        }
        Some(Verdict::OutOfService | Verdict::NotReady) | None => {}
    }
    // The watched state of the nodes may be older than the Instance.
    let Some(state) = cluster.node(node).await? else {
        // If the node has only lost its connection, its pods still run, and exist until Kubernetes has deleted them.
        let requested = cluster.requested(node).await?;
        return Ok(Finding::Absent(if requested.is_empty() {
            Absence::Deleted
        } else {
            Absence::Away(requested)
        }));
    };
    Ok(match release::verdict(&state, now) {
        Verdict::Present | Verdict::PresentUntil(_) => Finding::PresentFor(LOOK_AGAIN),
        // Kubernetes deletes the pods by force, and none of them runs.
        Verdict::OutOfService => Finding::Absent(Absence::Away(BTreeSet::new())),
        Verdict::NotReady => Finding::Absent(Absence::Away(cluster.requested(node).await?)),
    })
}

enum Finding {
    Present,
    PresentFor(Duration),
    Absent(Absence),
}

#[cfg(test)]
mod tests;
