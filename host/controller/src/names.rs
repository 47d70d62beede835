//! Reserves the names of Configurations for their namespaces, and frees names that are no longer used.
//!
//! ```text
//!  Configurations ─┐
//!                  ├─► plan ─► writes: reserve, note, free
//!  reservations ───┘     ▲
//!                        └ attempts: what is not written at once
//! ```

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::cluster::{Cluster, ClusterViews};
use leafhost_core::resource_names::NameSet;
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::{changed, is_outdated};
use tokio::time::Instant;

use crate::metrics::{Metrics, Write};
use crate::pass_schedule::{SOON, time_until};
use crate::writes::{Done, PLACES, Step, Writes};

mod name_index;
mod plan;

pub use name_index::{of_manifests, of_states};
use plan::{Action, Change, Plan, plan};

/// Time within which the watch should show a write.
const SEEN: Duration = Duration::from_secs(10);

/// Reservations as they were seen, and the change to write.
type Job = (Arc<NameSet>, Change);

/// Reserves and frees names while this controller leads.
pub async fn run(cluster: &dyn Cluster, grace: Duration, metrics: &Metrics) {
    let views = cluster.views();
    let identify = |(_, change): &Job| (change.clone(), ());
    let write = move |_, (set, change): Job| async move {
        let answer = write(cluster, &set, &change).await;
        ((set, change), answer)
    };
    let mut task = NameReserver {
        metrics,
        writes: Writes::new(views.leads.clone(), PLACES, (SOON, SEEN), identify, write),
        views,
        grace,
    };
    let mut logged = None;
    loop {
        let problem = task.views.names.borrow().problem.clone();
        if logged != problem {
            if let Some(problem) = &problem {
                tracing::warn!("ResourceNames {problem}");
            }
            logged = problem;
        }
        tokio::select! {
            biased;
            () = changed(&mut task.views.configurations) => {
                // The plan is outdated: a user may just have applied a Configuration again whose name is to be freed.
                task.writes.outdated();
            }
            () = changed(&mut task.views.names) => task.writes.changed(),
            step = task.writes.step(), if !is_outdated(&task.views.configurations) => match step {
                Step::Ended(all) => all.iter().for_each(|one| task.note(one)),
                Step::Pass => task.look(),
            },
        }
    }
}

struct NameReserver<'a> {
    metrics: &'a Metrics,
    views: ClusterViews,
    grace: Duration,
    /// Writes by name.
    writes: Writes<'a, String, Job, Change>,
}

impl NameReserver<'_> {
    /// Plans the writes.
    fn look(&mut self) {
        let states = Arc::clone(&self.views.configurations.borrow_and_update());
        let set = Arc::clone(&self.views.names.borrow_and_update());
        if !self.writes.leads() || !states.complete || !set.is_read {
            return;
        }
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Plan { changes, next } = plan(&states, &set, self.grace, clock);
        let next = next.map(|next| now + time_until(next, clock));
        let jobs = changes.into_iter().map(|change| {
            let (namespace, name) = (change.namespace.clone(), change.name.clone());
            (namespace, name, (Arc::clone(&set), change))
        });
        self.writes.plan(jobs, next, |_, _| None);
    }

    /// Records the outcome of a write.
    fn note(&self, done: &Done<String, Job>) {
        let (_, change) = &done.value;
        let (name, namespace) = (&change.name, &change.namespace);
        match &done.answer {
            Ok(()) => {
                tracing::info!(name, namespace, action = ?change.action, "wrote a ResourceName");
            }
            Err(WriteError::Outdated) => {}
            Err(error) => {
                self.metrics.failed(Write::Name);
                tracing::warn!(name, %error, "cannot write a ResourceName");
            }
        }
    }
}

async fn write(
    cluster: &dyn Cluster,
    set: &NameSet,
    Change {
        name,
        namespace,
        action,
    }: &Change,
) -> Result<(), WriteError> {
    let seen = || set.records.get(name).ok_or(WriteError::Outdated);
    match action {
        Action::Reserve => cluster.reserve(name, namespace).await,
        Action::Note { is_used } => {
            let now = (!is_used).then(Timestamp::now);
            cluster.note_unused(name, seen()?, now).await
        }
        Action::Free => cluster.free(name, seen()?).await,
    }
}

#[cfg(test)]
mod tests;
