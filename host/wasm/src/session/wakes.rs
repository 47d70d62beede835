//! What a session listens for, what it heard, and what the next call is told of it. Everything bounded.

use std::sync::Arc;
use std::time::Duration;

use leafhost_udev::{Event, Rule};
use tokio::sync::broadcast::error::RecvError;

use super::{Listening, Why};

/// How many events a call is told.
const MAX_TOLD: usize = 64;
/// How many events are kept while a call runs, for its answer to say which of them matter.
const MAX_HEARD: usize = 4096;

/// When a session wants to be called again.
#[derive(Debug, Clone, Default)]
pub(crate) struct Wakes {
    /// After that time.
    pub(crate) after: Option<Duration>,
    /// When a device event fits one of these.
    pub(crate) udev: Vec<Rule>,
    /// Wakes that cannot be served, and why.
    pub(crate) refused: Vec<String>,
}

/// What the next call is told.
#[derive(Debug, Default)]
pub(super) struct Pending {
    events: Vec<Why>,
    lost: bool,
    /// How many of the events are those of a call that failed: no reason for another by themselves.
    told_before: usize,
    /// Whether that call was told of lost events, too.
    lost_before: bool,
}

impl Pending {
    pub(super) fn events(&self) -> &[Why] {
        &self.events
    }

    pub(super) fn lost(&self) -> bool {
        self.lost
    }

    /// Whether there is something to make a call for.
    pub(super) fn is_reason(&self) -> bool {
        (self.lost && !self.lost_before) || self.events.len() > self.told_before
    }

    /// Whether more came than a call is told.
    pub(super) fn is_over(&self) -> bool {
        self.lost && !self.lost_before && self.events.len() >= MAX_TOLD
    }

    pub(super) fn push(&mut self, why: Why) {
        if self.events.len() < MAX_TOLD {
            self.events.push(why);
        } else {
            self.lose();
        }
    }

    pub(super) fn lose(&mut self) {
        self.lost = true;
        self.lost_before = false;
    }

    /// Puts back what a call was told that failed. Its timer has come and gone.
    pub(super) fn tell_again(&mut self, told: Self) {
        *self = told;
        self.events.retain(|why| *why != Why::Timer);
        self.told_before = self.events.len();
        self.lost_before = self.lost;
    }
}

/// What was heard while a call ran.
#[derive(Debug, Default)]
pub(super) struct Heard {
    events: Vec<Arc<Event>>,
    lost: bool,
}

impl Heard {
    pub(super) fn events(&self) -> &[Arc<Event>] {
        &self.events
    }

    pub(super) fn lost(&self) -> bool {
        self.lost
    }

    /// Keeps an event; none stands for events that are gone.
    pub(super) fn push(&mut self, event: Option<Arc<Event>>) {
        match event {
            Some(event) if self.events.len() < MAX_HEARD => self.events.push(event),
            _ => self.lost = true,
        }
    }
}

/// The next event; none if some were lost, or if there will be no more. Waits for ever where nobody listens.
pub(super) async fn hear(listening: &mut Option<Listening>) -> Option<Arc<Event>> {
    let Some(open) = listening else {
        return std::future::pending().await;
    };
    match open.events.recv().await {
        Ok(event) => return Some(event),
        Err(RecvError::Lagged(_)) => {}
        Err(RecvError::Closed) => *listening = None,
    }
    None
}
