//! Reserves the names of Configurations for their namespaces, and frees names that are no longer used.
//!
//! ```text
//!  Configurations ─┐
//!                  ├─► plan ─► writes: reserve, note, free
//!  reservations ───┘     ▲
//!                        └ attempts: what is not written at once
//! ```

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::cluster::{Cluster, ClusterViews};
use leafhost_core::resource_names::NameSet;
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::SourceEnded;
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::metrics::{Metrics, Write};
use crate::pass_schedule::{Earliest, PassSchedule, SOON, time_until};
use crate::writes::{Done, PLACES, Writes};

mod name_index;
mod plan;

pub use name_index::{of_manifests, of_states};
use plan::{Action, Change, Plan, plan};

/// Time within which the watch should show a write.
const SEEN: Duration = Duration::from_secs(10);

/// Reservations as they were seen, and the change to write.
type Job = (Arc<NameSet>, Change);

/// Reserves and frees names while this controller leads; returns only if a source ends.
pub async fn run(
    cluster: &dyn Cluster,
    grace: Duration,
    metrics: &Metrics,
) -> Result<(), SourceEnded> {
    let mut task = NameReserver {
        cluster,
        metrics,
        views: cluster.views(),
        grace,
        writes: Writes::new(PLACES),
        attempts: Attempts::default(),
    };
    let mut pace = PassSchedule::new(SOON);
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
            changed = task.views.leads.changed() => changed.map_err(|_| SourceEnded("the lease"))?,
            changed = task.views.configurations.changed() => {
                changed.map_err(|_| SourceEnded("Configurations"))?;
                // The plan is outdated: a user may just have applied a Configuration again whose name is to be freed.
                task.writes.plan([]);
            }
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

struct NameReserver<'a> {
    cluster: &'a dyn Cluster,
    metrics: &'a Metrics,
    views: ClusterViews,
    grace: Duration,
    /// Writes by name.
    writes: Writes<'a, String, Job>,
    attempts: Attempts<String, Change, ()>,
}

impl NameReserver<'_> {
    /// Plans the writes that are due. Returns the time of the next pass if nothing changes.
    fn look(&mut self) -> Option<Instant> {
        let states = Arc::clone(&self.views.configurations.borrow_and_update());
        let set = Arc::clone(&self.views.names.borrow_and_update());
        let is_leader = *self.views.leads.borrow_and_update();
        if !is_leader {
            // The next leader starts without this state, too.
            self.attempts = Attempts::default();
        }
        if !is_leader || !states.complete || !set.is_read {
            self.writes.plan([]);
            return None;
        }
        let (now, clock) = (Instant::now(), Timestamp::now());
        let Plan {
            changes,
            next: planned,
        } = plan(&states, &set, self.grace, clock);
        let names: BTreeSet<&str> = changes.iter().map(|change| change.name.as_str()).collect();
        self.attempts
            .forget(|name| names.contains(name.as_str()), now);
        let mut next = Earliest(planned.map(|planned| now + time_until(planned, clock)));
        let mut due = Vec::new();
        for change in changes {
            let later = self.attempts.later(&change.name, &change, &(), now);
            if let Some(until) = later {
                next.by(until);
            } else {
                let (namespace, name) = (change.namespace.clone(), change.name.clone());
                due.push((namespace, name, (Arc::clone(&set), change)));
            }
        }
        self.writes.plan(due);
        next.0
    }

    /// Begins planned writes, unless the plan is outdated.
    fn begin(&mut self) {
        if !*self.views.leads.borrow() || self.views.configurations.has_changed().unwrap_or(true) {
            return;
        }
        let cluster = self.cluster;
        self.writes.begin(|_, (set, change): Job| async move {
            let answer = write(cluster, &set, &change).await;
            ((set, change), answer)
        });
    }

    /// Records the outcome of a write.
    fn note(&mut self, done: Done<String, Job>) {
        let (_, change) = done.value;
        let (name, namespace) = (&change.name, &change.namespace);
        match (change.action, &done.answer) {
            (_, Err(WriteError::Outdated)) => {}
            (_, Err(error)) => {
                self.metrics.failed(Write::Name);
                tracing::warn!(name, %error, "cannot write a ResourceName");
            }
            (Action::Reserve, Ok(())) => {
                tracing::info!(name, namespace, "reserved the name of a resource");
            }
            (Action::Free, Ok(())) => {
                tracing::info!(
                    name,
                    "freed the name of a resource that no Configuration uses any more"
                );
            }
            (Action::Note { is_used }, Ok(())) => {
                tracing::info!(
                    name,
                    is_used,
                    "noted whether the name of a resource is used"
                );
            }
        }
        self.attempts
            .tried(done.key, (change, ()), &done.answer, SEEN, done.at);
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
