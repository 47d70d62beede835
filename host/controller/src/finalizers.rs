//! Removes the finalizers that Akri's agents left on objects that are being deleted.
//!
//! An agent of Akri adds the name of its node, without a domain, to the finalizers of each Configuration and of each Instance that its node
//! sees, and removes it when the object is deleted. If no such agent runs any more, the object would wait forever. An object that has been
//! waiting for [`WAIT`] therefore loses each finalizer without a domain; those of Kubernetes itself stay. An object that is not being
//! deleted keeps all finalizers, so that a cluster can go back to Akri.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::cluster::{Cluster, ClusterViews, Deleting, is_of_akri};
use leafhost_core::status_store::WriteError;
use leafhost_core::wait::SourceEnded;
use tokio::time::Instant;

use crate::attempts::Attempts;
use crate::pass_schedule::{Earliest, PassSchedule, SOON};
use crate::writes::{Done, PLACES, Writes};

/// Time that an agent of Akri gets to remove its finalizer, and within which the watch should show a write.
const WAIT: Duration = Duration::from_secs(10);

/// An object, and the finalizers that it keeps.
type Job = (Deleting, Vec<String>);

/// Removes the finalizers while this controller leads; returns only if a source ends.
pub async fn run(cluster: &dyn Cluster) -> Result<(), SourceEnded> {
    let ClusterViews {
        mut leads,
        mut deleting,
        ..
    } = cluster.views();
    let mut task = FinalizerRemover {
        writes: Writes::new(PLACES),
        attempts: Attempts::default(),
        first: BTreeMap::new(),
    };
    let mut pace = PassSchedule::new(SOON);
    loop {
        tokio::select! {
            changed = leads.changed() => changed.map_err(|_| SourceEnded("the lease"))?,
            changed = deleting.changed() => changed.map_err(|_| SourceEnded("objects that are being deleted"))?,
            done = task.writes.done() => {
                for one in done {
                    task.note(one);
                }
                task.begin(cluster, *leads.borrow());
            }
            () = pace.due() => {
                let is_leader = *leads.borrow_and_update();
                let next = task.look(&deleting.borrow_and_update(), is_leader);
                pace.looked(next);
                task.begin(cluster, is_leader);
                continue;
            }
        }
        pace.changed();
    }
}

struct FinalizerRemover<'a> {
    /// Writes by uid of the object.
    writes: Writes<'a, String, Job>,
    attempts: Attempts<String, (), ()>,
    /// Earliest time at which the finalizers of each object may be removed.
    first: BTreeMap<String, Instant>,
}

impl<'a> FinalizerRemover<'a> {
    /// Plans the writes that are due. Returns the time of the next pass if nothing changes.
    fn look(&mut self, objects: &[Deleting], is_leader: bool) -> Option<Instant> {
        if !is_leader {
            // The next leader starts without this state, too.
            self.attempts = Attempts::default();
            self.first.clear();
            self.writes.plan([]);
            return None;
        }
        let now = Instant::now();
        let waiting = objects.iter();
        let waiting: BTreeMap<&str, Job> = waiting
            .filter_map(|object| Some((object.uid.as_str(), (object.clone(), others(object)?))))
            .collect();
        self.first
            .retain(|uid, _| waiting.contains_key(uid.as_str()));
        self.attempts
            .forget(|uid| waiting.contains_key(uid.as_str()), now);
        let mut next = Earliest::default();
        let mut due = Vec::new();
        for (uid, job) in waiting {
            let first = *self.first.entry(uid.to_owned()).or_insert(now + WAIT);
            let later = self.attempts.later(&job.0.uid, &(), &(), now);
            match later.or(Some(first).filter(|first| *first > now)) {
                Some(until) => next.by(until),
                None => due.push((job.0.namespace.clone(), uid.to_owned(), job)),
            }
        }
        self.writes.plan(due);
        next.0
    }

    fn begin(&mut self, cluster: &'a dyn Cluster, is_leader: bool) {
        if is_leader {
            self.writes.begin(|_, (object, others): Job| async move {
                let answer = cluster.set_finalizers(&object, &others).await;
                ((object, others), answer)
            });
        }
    }

    /// Records the outcome of a write.
    fn note(&mut self, done: Done<String, Job>) {
        let (object, _) = &done.value;
        match &done.answer {
            Ok(()) => tracing::info!(%object, "removed the finalizers of agents of Akri"),
            // The next version of the object shows its state.
            Err(WriteError::Outdated) => {}
            Err(error) => {
                tracing::warn!(%object, %error, "cannot remove the finalizers of agents of Akri");
            }
        }
        self.attempts
            .tried(done.key, ((), ()), &done.answer, WAIT, done.at);
    }
}

/// Returns the finalizers of an object that are not of Akri's agents, or `None` if it has no finalizer of such an agent.
fn others(object: &Deleting) -> Option<Vec<String>> {
    let is_other = |name: &&String| !is_of_akri(name);
    let others: Vec<String> = object.finalizers.iter().filter(is_other).cloned().collect();
    (others.len() < object.finalizers.len()).then_some(others)
}

#[cfg(test)]
mod tests;
