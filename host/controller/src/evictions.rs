//! Evicts pods whose device is gone, if their Configuration asks for it, so that their controllers create them again on other nodes.
//!
//! ```text
//!  Instances, Configurations ─► losses ─► due ─► pod ─► eviction, Event
//!  reports, nodes ─────────────┘
//! ```
//!
//! A pod has used a device if the Instance has shown it as a holder. The controller remembers that only while it leads: devices that are
//! lost while no controller leads evict no pods.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::cluster::{Cluster, ClusterViews, EvictionError};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::node_report::ObjectName;
use leafhost_core::problem::Problem;
use leafhost_core::scheduling::PodKey;
use leafhost_core::status_store::{ConfigurationStates, Event, Regarding, WriteError};
use leafhost_core::wait::{changed, is_outdated, publish};
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::metrics::{Metrics, Write};
use crate::pass_schedule::SOON;
use crate::writes::{Done, ONE_PLACE, Step, Writes};
use plan::{Loss, Losses, World, reason_to_stay};

mod plan;

/// Pause after each eviction.
const PAUSE: Duration = Duration::from_millis(500);
/// Time within which the watch should show an eviction.
const SEEN: Duration = Duration::from_secs(30);
/// Reason of the Event on an evicted pod.
const REASON: &str = "DeviceGone";
/// Error of a controller that runs without the flag to evict pods.
const DISABLED: &str = "the controller may not evict pods";

/// Evicts pods while this controller leads, if `is_enabled`. `problems` gets a problem for each
/// Configuration whose pods are not restarted although it asks for that.
pub async fn run(
    cluster: &dyn Cluster,
    is_enabled: bool,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    metrics: &Metrics,
) {
    let views = cluster.views();
    let times = (SOON, SEEN);
    let write = move |pod: PodKey, (loss, _): Job| async move {
        let outcome = evict(cluster, &pod, &loss).await;
        sleep(PAUSE).await;
        let answer = answer(&outcome);
        ((loss, Some(outcome)), answer)
    };
    let mut task = PodEvictor {
        metrics,
        is_enabled,
        writes: Writes::new(views.leads.clone(), ONE_PLACE, times, |_| ((), ()), write),
        views,
        problems,
        losses: Losses::default(),
        denied: BTreeMap::new(),
        counted: BTreeSet::new(),
    };
    loop {
        tokio::select! {
            biased;
            () = changed(&mut task.views.nodes) => task.writes.changed(),
            () = changed(&mut task.views.instances) => {
                // The plan is outdated: the device may be back.
                task.writes.outdated();
            }
            () = changed(&mut task.views.configurations) => task.writes.changed(),
            () = changed(&mut task.views.reports) => task.writes.changed(),
            step = task.writes.step(), if !is_outdated(&task.views.instances) => match step {
                Step::Ended(all) => all.into_iter().for_each(|one| task.note(one)),
                Step::Pass => task.look(),
            },
        }
    }
}

/// Loss of a device, and the outcome for the pod; `None` before the attempt.
type Job = (Loss, Option<Outcome>);

/// Result of an attempt to evict a pod: the reason why it stays, or `None` if it was evicted.
type Outcome = Result<Option<&'static str>, EvictionError>;

struct PodEvictor<'a> {
    metrics: &'a Metrics,
    is_enabled: bool,
    views: ClusterViews,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    writes: Writes<'a, PodKey, Job>,
    losses: Losses,
    /// Last refusal of an eviction for a Configuration.
    denied: BTreeMap<ConfigurationKey, String>,
    /// Names of Configurations that have a counter.
    counted: BTreeSet<String>,
}

impl PodEvictor<'_> {
    /// Plans the evictions that are due.
    fn look(&mut self) {
        let nodes = Arc::clone(&self.views.nodes.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let configurations = Arc::clone(&self.views.configurations.borrow_and_update());
        let reports = Arc::clone(&self.views.reports.borrow_and_update());
        let is_leader = self.writes.leads();
        let is_read =
            nodes.complete && instances.complete && configurations.complete && reports.complete;
        if !is_leader {
            // The next leader starts without this state, too.
            self.losses = Losses::default();
            self.denied.clear();
            publish(&self.problems, Arc::default());
        }
        if !is_leader || !is_read {
            return;
        }
        self.forget(&configurations);
        publish(&self.problems, Arc::new(self.problems_of(&configurations)));
        if !self.is_enabled {
            return;
        }
        let world = World {
            nodes: &nodes,
            configurations: &configurations,
            reports: &reports,
            instances: &instances,
        };
        let now = Instant::now();
        self.losses.update(&world, now, Timestamp::now());
        let (due, next) = self.losses.due(now);
        let jobs = due
            .into_iter()
            .map(|(pod, loss)| (pod.namespace.clone(), pod, (loss, None)));
        self.writes.plan(jobs, next, |_, _| None);
    }

    /// Forgets the refusals of Configurations that are gone or no longer ask for restarts, and the counters of those that are gone.
    fn forget(&mut self, configurations: &ConfigurationStates) {
        let all = &configurations.configurations;
        self.denied
            .retain(|key, _| all.get(key).is_some_and(|state| state.restarts_pods));
        let names: BTreeSet<&str> = all.keys().map(ConfigurationKey::name).collect();
        let metrics = self.metrics;
        self.counted.retain(|name| {
            let is_there = names.contains(name.as_str());
            if !is_there {
                metrics.forget_evictions(name);
            }
            is_there
        });
    }

    /// Returns a problem for each Configuration whose pods are not restarted although it asks for that.
    fn problems_of(&self, configurations: &ConfigurationStates) -> Vec<Problem> {
        let all = configurations.configurations.iter();
        let asking = all.filter(|(_, state)| state.restarts_pods && !state.is_deleting);
        let problem = |key: &ConfigurationKey| {
            let disabled = (!self.is_enabled).then(|| DISABLED.to_owned());
            Some(Problem::PodsNotRestarted {
                configuration: key.clone(),
                error: disabled.or_else(|| self.denied.get(key).cloned())?,
            })
        };
        asking.filter_map(|(key, _)| problem(key)).collect()
    }

    /// Records the outcome of an attempt.
    fn note(&mut self, done: Done<PodKey, Job>) {
        let Done {
            key: pod,
            value: (loss, outcome),
            ..
        } = done;
        let (instance, node) = (&loss.instance, loss.node.as_str());
        match outcome {
            Some(Ok(None)) => {
                tracing::info!(%pod, %instance, node, "evicted a pod whose device is gone");
                let name = loss.configuration.name();
                self.metrics.evicted(name);
                self.counted.insert(name.to_owned());
                self.denied.remove(&loss.configuration);
                self.losses.settle(&pod, node);
            }
            Some(Ok(Some(why))) => {
                tracing::info!(%pod, %instance, node, why, "a pod whose device is gone stays");
                self.losses.settle(&pod, node);
            }
            Some(Err(error)) => {
                tracing::warn!(%pod, %instance, node, %error, "cannot evict a pod whose device is gone");
                if !matches!(error, EvictionError::NotNow(_)) {
                    self.metrics.failed(Write::Eviction);
                }
                if let EvictionError::Failed(WriteError::Denied(error)) = error {
                    self.denied.insert(loss.configuration, error);
                }
            }
            None => {}
        }
    }
}

/// Evicts a pod if it is the one that has used the device.
async fn evict(cluster: &dyn Cluster, pod: &PodKey, loss: &Loss) -> Outcome {
    let Some(state) = cluster.pod(pod).await? else {
        return Ok(Some("it is gone"));
    };
    if let Some(why) = reason_to_stay(&state, loss) {
        return Ok(Some(why));
    }
    match cluster.evict(pod, &state.uid).await {
        Err(EvictionError::Failed(WriteError::Outdated)) => return Ok(Some("it is gone")),
        evicted => evicted?,
    }
    let event = Event {
        regarding: Regarding::Pod(ObjectName {
            namespace: pod.namespace.clone(),
            name: pod.name.clone(),
            uid: state.uid,
        }),
        reason: REASON.to_owned(),
        message: format!(
            "evicted, because node {} no longer has the device of Instance {}, as leafhost.dev/restart-pods of Configuration {} asks",
            loss.node, loss.instance, loss.configuration
        ),
    };
    if let Err(error) = cluster.publish(&event).await {
        tracing::warn!(%pod, %error, reason = REASON, "cannot create an Event");
    }
    Ok(None)
}

/// Returns the outcome as the answer to a write.
fn answer(outcome: &Outcome) -> Result<(), WriteError> {
    match outcome {
        Ok(_) => Ok(()),
        Err(EvictionError::NotNow(message)) => Err(WriteError::Denied(message.clone())),
        Err(EvictionError::Failed(error)) => Err(error.clone()),
    }
}

#[cfg(test)]
mod tests;
