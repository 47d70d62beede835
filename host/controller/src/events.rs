//! Publishes an Event for each problem: one per object and reason, again when the problem recurs, and every five minutes while it lasts, so
//! that the Event's count rises and no new series begins.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::cluster::Cluster;
use leafhost_core::fair::round_robin;
use leafhost_core::status_store::{Event, Regarding};
use leafhost_core::wait::SourceEnded;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::attempts::Attempts;
use crate::pass_schedule::{Earliest, PassSchedule, SOON};
use crate::statuses::Problems;
use crate::writes::{Done, ONE_PLACE, Writes};

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

/// Publishes Events while this controller leads; returns only if a source ends.
pub async fn run(
    cluster: &dyn Cluster,
    mut problems: watch::Receiver<Problems>,
) -> Result<(), SourceEnded> {
    let mut leads = cluster.views().leads;
    let mut task = EventWriter {
        writes: Writes::new(ONE_PLACE),
        attempts: Attempts::default(),
        published: BTreeMap::new(),
    };
    let mut pace = PassSchedule::new(SOON);
    loop {
        tokio::select! {
            changed = leads.changed() => changed.map_err(|_| SourceEnded("the lease"))?,
            changed = problems.changed() => changed.map_err(|_| SourceEnded("problems"))?,
            done = task.writes.done() => {
                for one in done {
                    task.note(one);
                }
                task.begin(cluster, *leads.borrow());
            }
            () = pace.due() => {
                let is_leader = *leads.borrow_and_update();
                let next = task.look(&problems.borrow_and_update(), is_leader);
                pace.looked(next);
                task.begin(cluster, is_leader);
                continue;
            }
        }
        pace.changed();
    }
}

struct EventWriter<'a> {
    writes: Writes<'a, Key, String>,
    attempts: Attempts<Key, (), ()>,
    /// Time of the last Event of each problem that lasts. `attempts` spaces the Events of a problem that recurs.
    published: BTreeMap<Key, Instant>,
}

impl<'a> EventWriter<'a> {
    /// Plans the Events that are due. Returns the time of the next pass if nothing changes.
    fn look(&mut self, problems: &Problems, is_leader: bool) -> Option<Instant> {
        if !is_leader {
            self.attempts = Attempts::default();
            self.writes.plan([]);
            return None;
        }
        let now = Instant::now();
        self.published.retain(|key, _| problems.contains_key(key));
        self.attempts.forget(|key| problems.contains_key(key), now);
        let mut next = Earliest::default();
        let mut due = Vec::new();
        // Up to MOST problems: the first of each namespace, then the second of each, and so on.
        let ranked = round_robin(&**problems, |(key, _)| key.0.namespace());
        for (key, message) in ranked.into_iter().take(MOST) {
            let again = self.published.get(key).map(|at| *at + AGAIN);
            match self.attempts.later(key, &(), &(), now).or(again) {
                Some(at) if at > now => next.by(at),
                _ => due.push((key.0.namespace().to_owned(), key.clone(), message.clone())),
            }
        }
        self.writes.plan(due);
        next.0
    }

    fn begin(&mut self, cluster: &'a dyn Cluster, is_leader: bool) {
        if is_leader {
            self.writes
                .begin(|(regarding, reason), message: String| async move {
                    let event = Event {
                        regarding,
                        reason,
                        message,
                    };
                    let answer = cluster.publish(&event).await;
                    sleep(PAUSE).await;
                    (event.message, answer)
                });
        }
    }

    /// Records the outcome of a publication.
    fn note(&mut self, done: Done<Key, String>) {
        match &done.answer {
            Ok(()) => drop(self.published.insert(done.key.clone(), done.at)),
            Err(error) => {
                let reason = &done.key.1;
                tracing::warn!(%error, reason, "cannot create an Event");
            }
        }
        self.attempts
            .tried(done.key, ((), ()), &done.answer, SPACING, done.at);
    }
}

#[cfg(test)]
mod tests;
