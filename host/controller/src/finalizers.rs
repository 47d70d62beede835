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
use leafhost_core::wait::changed;
use tokio::time::Instant;

use crate::pass_schedule::SOON;
use crate::writes::{Done, PLACES, Step, Writes};

/// Time that an agent of Akri gets to remove its finalizer, and within which the watch should show a write.
const WAIT: Duration = Duration::from_secs(10);

/// An object, and the finalizers that it keeps.
type Job = (Deleting, Vec<String>);

/// Removes the finalizers while this controller leads.
pub async fn run(cluster: &dyn Cluster) {
    let ClusterViews {
        leads,
        mut deleting,
        ..
    } = cluster.views();
    let write = move |_, (object, others): Job| async move {
        let answer = cluster.set_finalizers(&object, &others).await;
        ((object, others), answer)
    };
    let mut task = FinalizerRemover {
        writes: Writes::new(leads, PLACES, (SOON, WAIT), |_| ((), ()), write),
        first: BTreeMap::new(),
    };
    loop {
        tokio::select! {
            biased;
            () = changed(&mut deleting) => task.writes.changed(),
            step = task.writes.step() => match step {
                Step::Ended(all) => all.iter().for_each(note),
                Step::Pass => task.look(&deleting.borrow_and_update()),
            },
        }
    }
}

struct FinalizerRemover<'a> {
    /// Writes by uid of the object.
    writes: Writes<'a, String, Job>,
    /// Earliest time at which the finalizers of each object may be removed.
    first: BTreeMap<String, Instant>,
}

impl FinalizerRemover<'_> {
    /// Plans the writes.
    fn look(&mut self, objects: &[Deleting]) {
        if !self.writes.leads() {
            // The next leader starts without this state, too.
            self.first.clear();
            return;
        }
        let now = Instant::now();
        let waiting = objects.iter();
        let waiting: BTreeMap<&str, Job> = waiting
            .filter_map(|object| Some((object.uid.as_str(), (object.clone(), others(object)?))))
            .collect();
        self.first
            .retain(|uid, _| waiting.contains_key(uid.as_str()));
        let jobs = waiting
            .into_iter()
            .map(|(uid, job)| (job.0.namespace.clone(), uid.to_owned(), job));
        self.writes.plan(jobs, None, |uid, _| {
            Some(*self.first.entry(uid.clone()).or_insert(now + WAIT))
        });
    }
}

/// Logs the outcome of a write.
fn note(done: &Done<String, Job>) {
    let (object, _) = &done.value;
    match &done.answer {
        Ok(()) => tracing::info!(%object, "removed the finalizers of agents of Akri"),
        // The next version of the object shows its state.
        Err(WriteError::Outdated) => {}
        Err(error) => {
            tracing::warn!(%object, %error, "cannot remove the finalizers of agents of Akri");
        }
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
