//! What a handler may call. In a component these are the imports, natively the fake of [`crate::testing`].
//!
//! [`Host`] is a concrete type on purpose: behind a trait object every import would stay in every component, and
//! an import without a grant is refused at load. So a capability that is never called does not appear.

use std::time::Duration;

use crate::udev::Udev;
use crate::{Budget, Level};

#[cfg(target_family = "wasm")]
pub(crate) mod component;
mod executor;
#[cfg(not(target_family = "wasm"))]
pub(crate) mod native;
mod network;
pub(crate) mod wait_list;

#[cfg(target_family = "wasm")]
pub(crate) use component as imports;
#[cfg(not(target_family = "wasm"))]
pub(crate) use executor::unless;
pub(crate) use imports::Imports;
#[cfg(not(target_family = "wasm"))]
pub(crate) use native as imports;

/// The capabilities of one call.
///
/// Logging, explanations, clock and random numbers are always there; the rest needs a grant as soon as the handler
/// calls it anywhere.
#[derive(Debug)]
pub struct Host {
    pub(crate) imports: Imports,
    started: Duration,
    wall: Duration,
}

impl Host {
    pub(crate) fn new(imports: Imports, budget: &Budget) -> Self {
        Self {
            started: imports.now(),
            wall: Duration::from_millis(budget.wall_ms.into()),
            imports,
        }
    }

    /// Writes a line to the agent's log, with the names of the handler and the Configuration. Cut after 4 KiB; at
    /// most 15 lines in 10 s for one handler. [`debug`](Self::debug), [`info`](Self::info), [`warn`](Self::warn) and
    /// [`error`](Self::error) are shorter.
    pub fn log(&self, level: Level, message: impl AsRef<str>) {
        self.imports.log(level, message.as_ref());
    }

    /// A line for the author: off unless the agent runs with `debug`.
    pub fn debug(&self, message: impl AsRef<str>) {
        self.log(Level::Debug, message);
    }

    /// A line of interest in normal operation.
    pub fn info(&self, message: impl AsRef<str>) {
        self.log(Level::Info, message);
    }

    /// Something is wrong that the handler can live with.
    pub fn warn(&self, message: impl AsRef<str>) {
        self.log(Level::Warn, message);
    }

    /// Something is wrong that an operator should act on.
    pub fn error(&self, message: impl AsRef<str>) {
        self.log(Level::Error, message);
    }

    /// Says that something was seen and is no device: `subject` as an operator knows it (a path, an address), `rule` the
    /// part of the details that decided, `reason` what did not fit. Shown by `leafhost status configuration` and
    /// by `leafhost handler run --explain`.
    pub fn skipped(
        &self,
        subject: impl AsRef<str>,
        rule: impl AsRef<str>,
        reason: impl AsRef<str>,
    ) {
        self.imports
            .skipped(subject.as_ref(), rule.as_ref(), reason.as_ref());
    }

    /// The host's monotonic clock. Times of it in a cursor stay comparable with those of later calls; what it counts from
    /// means nothing.
    pub fn now(&self) -> Duration {
        self.imports.now()
    }

    /// How long the call has taken.
    pub fn elapsed(&self) -> Duration {
        self.imports.now().saturating_sub(self.started)
    }

    /// Whether less than 80 % of the call's wall clock is used. If not, answer
    /// [`partial`](crate::Discovery::partial) and go on at the next call: a call that goes beyond its budget is ended and its
    /// answer lost.
    pub fn has_time(&self) -> bool {
        !self.time_left().is_zero()
    }

    /// How long until 80 % of the call's wall clock is used: the [`limit`](Self::within) of what the call does before it
    /// answers, perhaps in part.
    pub fn time_left(&self) -> Duration {
        let to_use = self.wall.saturating_mul(4) / 5;
        to_use.saturating_sub(self.elapsed())
    }

    /// A random number; not for secrets.
    pub fn random(&self) -> u64 {
        self.imports.random()
    }

    /// The devices of the node. Needs the grant `udev`.
    pub fn udev(&self) -> Udev<'_> {
        Udev(self)
    }
}
