//! Publishes an Event for each problem: one per object and reason, again when the problem recurs, and every five minutes while it lasts, so
//! that the Event's count rises and no new series begins.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::cluster::Cluster;
use leafhost_core::fair::round_robin;
use leafhost_core::status_store::{Event, Regarding};
use leafhost_core::wait::changed;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::pass_schedule::SOON;
use crate::statuses::Problems;
use crate::writes::{Done, ONE_PLACE, Step, Writes};

/// Interval at which a lasting problem is published again; kube forgets an Event's series a minute later.
const AGAIN: Duration = Duration::from_mins(5);
/// Shortest interval between two Events of a key.
const SPACING: Duration = Duration::from_secs(30);
/// Pause after each request.
const PAUSE: Duration = Duration::from_millis(100);
/// Maximum number of problems that get Events: the number that can be published within [`AGAIN`]. Namespaces share it equally.
const MOST: usize = 2_000;

/// Key of an Event: the object and the reason.
type Key = (Regarding, String);

/// Publishes Events while this controller leads.
pub async fn run(cluster: &dyn Cluster, mut problems: watch::Receiver<Problems>) {
    let leads = cluster.views().leads;
    let write = move |(regarding, reason): Key, message: String| async move {
        let event = Event {
            regarding,
            reason,
            message,
        };
        let answer = cluster.publish(&event).await;
        sleep(PAUSE).await;
        (event.message, answer)
    };
    let mut task = EventWriter {
        writes: Writes::new(leads, ONE_PLACE, (SOON, SPACING), |_| ((), ()), write),
        published: BTreeMap::new(),
    };
    loop {
        tokio::select! {
            biased;
            () = changed(&mut problems) => task.writes.changed(),
            step = task.writes.step() => match step {
                Step::Ended(all) => all.into_iter().for_each(|one| task.note(one)),
                Step::Pass => task.look(&problems.borrow_and_update()),
            },
        }
    }
}

struct EventWriter<'a> {
    writes: Writes<'a, Key, String>,
    /// Time of the last Event of each problem that lasts. `writes` spaces the Events of a problem that recurs.
    published: BTreeMap<Key, Instant>,
}

impl EventWriter<'_> {
    /// Plans the Events.
    fn look(&mut self, problems: &Problems) {
        if !self.writes.leads() {
            return;
        }
        self.published.retain(|key, _| problems.contains_key(key));
        // Up to MOST problems: the first of each namespace, then the second of each, and so on.
        let ranked = round_robin(&**problems, |(key, _)| key.0.namespace());
        let ranked = ranked.into_iter().take(MOST);
        let jobs = ranked
            .map(|(key, message)| (key.0.namespace().to_owned(), key.clone(), message.clone()));
        self.writes.plan(jobs, None, |key, _| {
            self.published.get(key).map(|at| *at + AGAIN)
        });
    }

    /// Records the outcome of a publication.
    fn note(&mut self, done: Done<Key, String>) {
        match done.answer {
            Ok(()) => drop(self.published.insert(done.key, done.at)),
            Err(error) => {
                let reason = &done.key.1;
                tracing::warn!(%error, reason, "cannot create an Event");
            }
        }
    }
}

#[cfg(test)]
mod tests;
