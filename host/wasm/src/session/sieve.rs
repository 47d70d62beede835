//! Which device events wake: compared away from the async threads, because the patterns are the handler's and sysfs need not answer.
//!
//! What is not compared in time wakes: a call too many costs some milliseconds, one too few a device.

use std::sync::Arc;
use std::time::Duration;

use leafhost_udev::{Event, Subsystems};
use tokio::time::Instant;
use tokio_util::task::AbortOnDropHandle;

use super::{MAX_EVENTS, Wakes};
use crate::cpu::thread_time;
use crate::threads::Aside;

/// How much computing the events that came together are worth.
const COMPUTING: Duration = Duration::from_millis(50);
/// How long sysfs may take to say what a device has.
const ANSWERING: Duration = Duration::from_secs(1);

/// An event and when it was heard.
pub(super) type Came = (Instant, Arc<Event>);

/// What events are compared with, besides the wakes, and where.
#[derive(Debug)]
pub(super) struct Looks {
    pub(super) allowed: Arc<Subsystems>,
    pub(super) comparisons: Aside,
}

/// Events that are yet to be compared.
#[derive(Debug, Default)]
pub(super) struct Sieve {
    queue: Vec<Came>,
    looking: Option<Looking>,
    /// A look that sysfs did not answer: it cannot be ended, and there is no other beside it.
    stuck: Option<Task>,
    problem: Option<String>,
}

/// A comparison: given up, it does not begin, but once begun it ends by itself.
type Task = AbortOnDropHandle<Result<Looked, String>>;

#[derive(Debug)]
struct Looking {
    events: Vec<Came>,
    until: Instant,
    task: Task,
}

/// For each event whether it fits, and whether there was time to compare all.
#[derive(Debug)]
struct Looked {
    fits: Vec<bool>,
    compared: bool,
}

impl Sieve {
    /// Takes an event; false if there are too many.
    pub(super) fn push(&mut self, event: Arc<Event>) -> bool {
        let room = self.queue.len() < MAX_EVENTS;
        if room {
            self.queue.push((Instant::now(), event));
        }
        room
    }

    /// Why events woke that were not compared, if the last ones did.
    pub(super) fn problem(&self) -> Option<String> {
        self.problem.clone()
    }

    /// Those of the next events that wake; never ends where there are none. Cancel-safe.
    pub(super) async fn next(&mut self, wakes: &Arc<Wakes>, looks: Option<&Looks>) -> Vec<Came> {
        let looking = match (&mut self.looking, looks) {
            (Some(looking), _) => looking,
            (None, Some(looks)) if !self.queue.is_empty() => {
                let events = std::mem::take(&mut self.queue);
                self.stuck.take_if(|task| task.is_finished());
                if self.stuck.is_some() {
                    return events;
                }
                self.looking.insert(look(events, wakes, looks))
            }
            _ => return std::future::pending().await,
        };
        let looked = tokio::time::timeout_at(looking.until, &mut looking.task).await;
        let Some(Looking { events, task, .. }) = self.looking.take() else {
            return Vec::new();
        };
        match looked {
            Ok(Ok(Ok(Looked { fits, compared }))) => {
                self.problem = (!compared).then(|| {
                    format!(
                        "udev: comparing events with the rules took more than {} ms, so they wake without; use fewer rules or simpler patterns",
                        COMPUTING.as_millis()
                    )
                });
                let fitting = events.into_iter().zip(fits).filter(|(_, fits)| *fits);
                fitting.map(|(came, _)| came).collect()
            }
            Ok(Ok(Err(why))) => {
                self.problem = Some(format!(
                    "udev: events could not be compared with the rules, so they wake without: {why}"
                ));
                events
            }
            // Its last words are in the log.
            Ok(Err(_)) => events,
            Err(_) => {
                self.problem = Some(format!(
                    "udev: /sys did not answer for {} s while an event was compared, so events wake without; a driver may hang",
                    ANSWERING.as_secs()
                ));
                self.stuck = Some(task);
                events
            }
        }
    }
}

fn look(events: Vec<Came>, wakes: &Arc<Wakes>, looks: &Looks) -> Looking {
    let (wakes, allowed) = (Arc::clone(wakes), Arc::clone(&looks.allowed));
    let asked: Vec<Arc<Event>> = events.iter().map(|(_, event)| Arc::clone(event)).collect();
    let comparisons = looks.comparisons.clone();
    let compare = move || {
        let begun = thread_time();
        let go_on = || thread_time().saturating_sub(begun) < COMPUTING;
        let fits = |event: &Arc<Event>| {
            let mut rules = wakes.udev.iter();
            rules.any(|rule| rule.wakes_on(event, &allowed, &go_on))
        };
        Looked {
            fits: asked.iter().map(fits).collect(),
            compared: go_on(),
        }
    };
    Looking {
        events,
        until: Instant::now() + ANSWERING,
        task: AbortOnDropHandle::new(tokio::spawn(async move { comparisons.run(compare).await })),
    }
}
