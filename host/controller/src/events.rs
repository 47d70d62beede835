//! Makes an Event of each problem: one for each object and reason, again when the problem comes up again, and every five minutes while it
//! lasts, so that it counts and does not begin anew.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::status_store::{Event, Regarding, StatusStore, WriteError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::releasing::WRITE_AGAIN;
use crate::statuses::Problems;
use crate::task::Error;

/// How long an Event counts on; kube forgets it a minute later.
const AGAIN: Duration = Duration::from_mins(5);
/// An Event is made at most so often.
const SPACING: Duration = Duration::from_secs(30);
/// The pause after each request.
const PAUSE: Duration = Duration::from_millis(100);
/// The most problems of which Events are made: so many can be made within [`AGAIN`].
const MOST: usize = 2_000;

/// Runs without end.
pub async fn run(
    mut leads: watch::Receiver<bool>,
    store: &dyn StatusStore,
    mut problems: watch::Receiver<Problems>,
) -> Result<(), Error> {
    let mut book = Book::default();
    let mut rests = Instant::now();
    loop {
        let next = if *leads.borrow_and_update() {
            book.next(&problems.borrow_and_update())
        } else {
            None
        };
        let at = next.as_ref().map_or(rests, |(at, _)| rests.max(*at));
        tokio::select! {
            changed = leads.changed() => changed.map_err(|_| Error("the lease"))?,
            changed = problems.changed() => changed.map_err(|_| Error("problems"))?,
            () = sleep_until(at), if next.is_some() => {
                if let Some((_, event)) = next {
                    let pause = make(store, &event, &mut book).await;
                    rests = Instant::now() + pause;
                }
            }
        }
    }
}

/// Makes an Event. Returns how long to make none.
async fn make(store: &dyn StatusStore, event: &Event, book: &mut Book) -> Duration {
    let outcome = store.publish(event).await;
    book.made(event);
    let (error, pause) = match outcome {
        Ok(()) => return PAUSE,
        Err(error @ WriteError::NoAnswer(_)) => (error, WRITE_AGAIN),
        Err(error) => (error, PAUSE),
    };
    tracing::warn!(%error, reason = event.reason, "cannot make an Event");
    pause
}

/// When each Event was made.
#[derive(Debug, Default)]
struct Book(BTreeMap<(Regarding, String), Made>);

#[derive(Debug)]
struct Made {
    at: Instant,
    /// Whether the problem has lasted since then.
    lasts: bool,
}

impl Book {
    /// The Event that is due first, and when.
    fn next(&mut self, problems: &Problems) -> Option<(Instant, Event)> {
        let now = Instant::now();
        self.0.retain(|key, made| {
            made.lasts &= problems.contains_key(key);
            made.lasts || made.at + AGAIN > now
        });
        let due = problems.iter().take(MOST).map(|(key, event)| {
            let at = self.0.get(key).map_or(now, |made| {
                made.at + if made.lasts { AGAIN } else { SPACING }
            });
            (at, event)
        });
        let (at, event) = due.min_by_key(|(at, _)| *at)?;
        Some((at, event.clone()))
    }

    fn made(&mut self, event: &Event) {
        let key = (event.regarding.clone(), event.reason.clone());
        let at = Instant::now();
        self.0.insert(key, Made { at, lasts: true });
    }
}

#[cfg(test)]
mod tests;
