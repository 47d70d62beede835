//! Labels each node with the Configurations of which it sees a device, so that pods can select such nodes.
//!
//! Labels that others have set are never touched: a label that exists and is not the controller's own stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::cluster::{Cluster, ClusterViews, NodeLabels};
use leafhost_core::names::GROUP;
use leafhost_core::ports::InstanceSet;
use leafhost_core::resource_names::NameOwners;
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::SourceEnded;
use leafhost_core::write_limiter::WriteLimiter;
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::metrics::{Metrics, Write};
use crate::names::of_states;
use crate::pass_schedule::{Earliest, PassSchedule};
use crate::writes::{Done, PLACES, Writes};

/// Delay between a change and the pass that handles it; the devices of many nodes come together.
const SOON: Duration = Duration::from_secs(1);
/// Time within which the watch should show a write.
const SEEN: Duration = Duration::from_secs(30);
/// Number of writes of a node in a burst; after it, one a minute is allowed.
const AT_ONCE: u32 = 10;
/// Maximum length of the part of a label's name after the slash.
const MAX_NAME: usize = 63;

/// Labels to set on a node, and its current labels.
type Job = (BTreeSet<String>, NodeLabels);

/// Labels nodes while this controller leads, if `is_enabled`; returns only if a source ends.
pub async fn run(
    cluster: &dyn Cluster,
    is_enabled: bool,
    metrics: &Metrics,
) -> Result<(), SourceEnded> {
    if !is_enabled {
        return std::future::pending().await;
    }
    let mut task = NodeLabeler {
        cluster,
        metrics,
        views: cluster.views(),
        writes: Writes::new(PLACES),
        attempts: Attempts::default(),
        written: WriteLimiter::new(AT_ONCE),
    };
    let mut pace = PassSchedule::new(SOON);
    loop {
        tokio::select! {
            changed = task.views.leads.changed() => changed.map_err(|_| SourceEnded("the lease"))?,
            changed = task.views.node_labels.changed() => changed.map_err(|_| SourceEnded("labels of nodes"))?,
            changed = task.views.instances.changed() => changed.map_err(|_| SourceEnded("Instances"))?,
            changed = task.views.configurations.changed() => changed.map_err(|_| SourceEnded("Configurations"))?,
            changed = task.views.names.changed() => changed.map_err(|_| SourceEnded("ResourceNames"))?,
            done = task.writes.done() => {
                for one in done {
                    task.note(one);
                }
                task.begin();
            }
            () = pace.due() => {
                let next = task.look();
                pace.looked(next);
                task.begin();
                continue;
            }
        }
        pace.changed();
    }
}

struct NodeLabeler<'a> {
    cluster: &'a dyn Cluster,
    metrics: &'a Metrics,
    views: ClusterViews,
    writes: Writes<'a, String, Job>,
    attempts: Attempts<String, BTreeSet<String>, NodeLabels>,
    /// Limiter of the writes of each node: devices that come and go would otherwise cause endless writes.
    written: WriteLimiter<String>,
}

impl NodeLabeler<'_> {
    /// Plans the writes that are due. Returns the time of the next pass if nothing changes.
    fn look(&mut self) -> Option<Instant> {
        let nodes = Arc::clone(&self.views.node_labels.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let configurations = Arc::clone(&self.views.configurations.borrow_and_update());
        let names = Arc::clone(&self.views.names.borrow_and_update());
        let is_leader = *self.views.leads.borrow_and_update();
        self.writes.plan([]);
        if !is_leader {
            // The next leader starts without this state, too.
            self.attempts = Attempts::default();
        }
        if !is_leader || !instances.complete || !configurations.complete || !names.is_known {
            return None;
        }
        let owners = of_states(&names.names, &configurations);
        let planned = plan(&nodes, &instances, &owners);
        let now = Instant::now();
        self.attempts.forget(|node| planned.contains_key(node), now);
        let mut next = Earliest::default();
        let mut due = Vec::new();
        for (node, labels) in planned {
            let before = nodes.get(&node).cloned().unwrap_or_default();
            let later = self.attempts.later(&node, &labels, &before, now);
            match later.or_else(|| self.written.next(&node, now)) {
                Some(until) => next.by(until),
                None => due.push((String::new(), node, (labels, before))),
            }
        }
        self.writes.plan(due);
        next.0
    }

    fn begin(&mut self) {
        if !*self.views.leads.borrow() {
            return;
        }
        let cluster = self.cluster;
        self.writes.begin(|node: String, job: Job| async move {
            let answer = cluster.label_node(&node, &job.0).await;
            (job, answer)
        });
    }

    /// Records the outcome of a write.
    fn note(&mut self, done: Done<String, Job>) {
        let Done {
            key: node,
            value: job,
            answer,
            at,
            ..
        } = done;
        match &answer {
            Ok(()) => {
                tracing::info!(%node, labels = ?job.0, "set the labels of a node");
                self.written.record(node.clone(), at);
            }
            // The next version of the node shows the state.
            Err(WriteError::Outdated) => {}
            Err(error) => {
                tracing::warn!(%node, %error, "cannot set the labels of a node");
                self.metrics.failed(Write::Node);
            }
        }
        self.attempts.tried(node, job, &answer, SEEN, at);
    }
}

/// Returns the nodes whose labels differ, each with all labels that the controller wants on it: one for each Configuration of which the
/// node sees a device, unless another namespace has its name, the name is too long, or others have set the label.
fn plan(
    nodes: &BTreeMap<String, NodeLabels>,
    instances: &InstanceSet,
    owners: &NameOwners<'_>,
) -> BTreeMap<String, BTreeSet<String>> {
    let mut seen: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for instance in instances.instances.values() {
        let Some(key) = instance.configuration() else {
            continue;
        };
        let is_taken = owners.taken_from(key.namespace(), key.name()).is_some();
        if is_taken || key.name().len() > MAX_NAME {
            continue;
        }
        for node in &instance.spec.nodes {
            let labels = seen.entry(node.as_str()).or_default();
            labels.insert(format!("{GROUP}/{}", key.name()));
        }
    }
    let none = BTreeSet::new();
    let differing = nodes.iter().filter_map(|(node, found)| {
        let seen = seen.get(node.as_str()).unwrap_or(&none).iter();
        let free = seen.filter(|label| found.own.contains(*label) || !found.all.contains(*label));
        let wanted: BTreeSet<String> = free.cloned().collect();
        (wanted != found.own).then(|| (node.clone(), wanted))
    });
    differing.collect()
}

#[cfg(test)]
mod tests;
