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
use leafhost_core::wait::changed;
use leafhost_core::write_limiter::WriteLimiter;
use tokio::time::Instant;

use crate::metrics::{Metrics, Write};
use crate::names::of_states;
use crate::writes::{Done, PLACES, Step, Writes};

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

/// Labels nodes while this controller leads, if `is_enabled`.
pub async fn run(cluster: &dyn Cluster, is_enabled: bool, metrics: &Metrics) {
    if !is_enabled {
        return;
    }
    let views = cluster.views();
    let write = move |node: String, job: Job| async move {
        let answer = cluster.label_node(&node, &job.0).await;
        (job, answer)
    };
    let mut task = NodeLabeler {
        metrics,
        writes: Writes::new(views.leads.clone(), PLACES, (SOON, SEEN), Job::clone, write),
        views,
        written: WriteLimiter::new(AT_ONCE),
    };
    loop {
        tokio::select! {
            biased;
            () = changed(&mut task.views.node_labels) => task.writes.changed(),
            () = changed(&mut task.views.instances) => task.writes.changed(),
            () = changed(&mut task.views.configurations) => task.writes.changed(),
            () = changed(&mut task.views.names) => task.writes.changed(),
            step = task.writes.step() => match step {
                Step::Ended(all) => all.into_iter().for_each(|one| task.note(one)),
                Step::Pass => task.look(),
            },
        }
    }
}

struct NodeLabeler<'a> {
    metrics: &'a Metrics,
    views: ClusterViews,
    writes: Writes<'a, String, Job, BTreeSet<String>, NodeLabels>,
    /// Limiter of the writes of each node: devices that come and go would otherwise cause endless writes.
    written: WriteLimiter<String>,
}

impl NodeLabeler<'_> {
    /// Plans the writes.
    fn look(&mut self) {
        let nodes = Arc::clone(&self.views.node_labels.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let configurations = Arc::clone(&self.views.configurations.borrow_and_update());
        let names = Arc::clone(&self.views.names.borrow_and_update());
        let is_read = instances.complete && configurations.complete && names.is_known;
        if !self.writes.leads() || !is_read {
            return;
        }
        let owners = of_states(&names.names, &configurations);
        let planned = plan(&nodes, &instances, &owners).into_iter();
        let jobs = planned.map(|(node, labels)| {
            let before = nodes.get(&node).cloned().unwrap_or_default();
            (String::new(), node, (labels, before))
        });
        let now = Instant::now();
        self.writes
            .plan(jobs, None, |node, _| self.written.next(node, now));
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
        match answer {
            Ok(()) => {
                tracing::info!(%node, labels = ?job.0, "set the labels of a node");
                self.written.record(node, at);
            }
            // The next version of the node shows the state.
            Err(WriteError::Outdated) => {}
            Err(error) => {
                tracing::warn!(%node, %error, "cannot set the labels of a node");
                self.metrics.failed(Write::Node);
            }
        }
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
