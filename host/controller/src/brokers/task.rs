//! Task that watches the cluster, plans after each change, and writes what the plan contains.

use std::mem::{Discriminant, discriminant};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::brokers::{Brokers, Change, Object, ObjectKey, ObjectSet};
use leafhost_core::cluster::{Cluster, ClusterViews};
use leafhost_core::problem::Problem;
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::{changed, is_outdated, publish};
use tokio::sync::watch;
use tokio::time::Instant;

use super::failed::problems;
use super::plan::{Plan, World, plan};
use super::restarts::Restarts;
use crate::metrics::{Metrics, Write};
use crate::pass_schedule::{SOON, time_until};
use crate::writes::{Done, PLACES, Step, Writes};

/// Time within which the watch should show a write.
const SEEN: Duration = Duration::from_secs(10);

/// A change, and the object before it.
type Job = (Change, Option<Arc<Object>>);

/// Kind of a change, and its digest or uid, without the body.
type ChangeId = (Discriminant<Change>, String);

fn id(change: &Change) -> ChangeId {
    let text = match change {
        Change::Create(wanted) | Change::Replace { wanted, .. } => &wanted.made_of,
        Change::Delete { uid, .. } => uid,
    };
    (discriminant(change), text.clone())
}

/// Creates the brokers of a cluster while this controller leads. `problems` gets the sorted broker problems of Configurations; it is empty
/// while another controller leads.
pub async fn run(
    cluster: &dyn Cluster,
    brokers: &dyn Brokers,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    metrics: &Metrics,
) {
    let views = cluster.views();
    let identify = |(change, there): &Job| (id(change), there.clone());
    let write = move |_, (change, there): Job| async move {
        let answer = brokers.write(&change).await;
        ((change, there), answer)
    };
    let mut task = BrokerTask {
        writes: Writes::new(views.leads.clone(), PLACES, (SOON, SEEN), identify, write),
        views,
        objects: brokers.objects(),
        problems,
        metrics,
        restarts: Restarts::default(),
    };
    loop {
        tokio::select! {
            biased;
            () = changed(&mut task.views.nodes) => task.writes.changed(),
            () = changed(&mut task.views.manifests) => task.writes.outdated(),
            () = changed(&mut task.views.instances) => task.writes.changed(),
            () = changed(&mut task.views.names) => task.writes.changed(),
            () = changed(&mut task.objects) => task.writes.changed(),
            step = task.writes.step(), if !is_outdated(&task.views.manifests) => match step {
                Step::Ended(all) => all.iter().for_each(|one| task.note(one)),
                Step::Pass => task.look(),
            },
        }
    }
}

struct BrokerTask<'a> {
    views: ClusterViews,
    objects: watch::Receiver<Arc<ObjectSet>>,
    problems: watch::Sender<Arc<Vec<Problem>>>,
    metrics: &'a Metrics,
    writes: Writes<'a, ObjectKey, Job, ChangeId, Option<Arc<Object>>>,
    restarts: Restarts,
}

impl BrokerTask<'_> {
    /// Plans the writes.
    fn look(&mut self) {
        let nodes = Arc::clone(&self.views.nodes.borrow_and_update());
        let manifests = Arc::clone(&self.views.manifests.borrow_and_update());
        let instances = Arc::clone(&self.views.instances.borrow_and_update());
        let objects = Arc::clone(&self.objects.borrow_and_update());
        let names = Arc::clone(&self.views.names.borrow_and_update());
        let is_read = nodes.complete
            && manifests.complete
            && instances.complete
            && objects.complete
            && names.is_known;
        if !self.writes.leads() {
            self.publish(Vec::new());
            return;
        }
        if !is_read {
            return;
        }
        let world = World {
            manifests: &manifests.manifests,
            instances: &instances.instances,
            objects: &objects.objects,
            nodes: &nodes.nodes,
            names: &names.names,
        };
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Plan {
            changes,
            problems: mut told,
            next,
            pods,
        } = plan(&world, &mut self.restarts, clock);
        self.restarts.keep(&pods);
        let failed = changes.iter().filter_map(|(configuration, change)| {
            let error = self.writes.attempts.error(change.key())?;
            Some((configuration, change.key(), error))
        });
        told.extend(problems(failed));
        let next = next.map(|next| now + time_until(next, clock));
        let jobs = changes.into_iter().map(|(_, change)| {
            let key = change.key().clone();
            let there = world.objects.get(&key).cloned();
            (key.namespace.clone(), key, (change, there))
        });
        self.writes.plan(jobs, next, |_, _| None);
        self.publish(told);
    }

    fn note(&self, done: &Done<ObjectKey, Job>) {
        let (change, _) = &done.value;
        log(change, done.answer.as_ref().err());
        if !matches!(done.answer, Ok(()) | Err(WriteError::Outdated)) {
            self.metrics.failed(Write::Broker);
        }
    }

    fn publish(&self, mut problems: Vec<Problem>) {
        problems.sort();
        let published = Arc::clone(&self.problems.borrow());
        for problem in problems
            .iter()
            .filter(|problem| !published.contains(problem))
        {
            tracing::warn!(reason = problem.reason(), subject = %problem.subject(), "{problem}");
        }
        publish(&self.problems, Arc::new(problems));
    }
}

fn log(change: &Change, error: Option<&WriteError>) {
    let object = change.key();
    match (change, error) {
        (Change::Create(_), None) => tracing::info!(%object, "created"),
        (Change::Replace { .. }, None) => tracing::info!(%object, "changed"),
        (Change::Delete { .. }, None) => tracing::info!(%object, "deleted"),
        (_, Some(error)) => tracing::debug!(%object, %error, "not written"),
    }
}

#[cfg(test)]
mod tests;
