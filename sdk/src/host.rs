//! Capabilities that a handler may call: the imports in a component, the fake of [`crate::testing`] in a native build.
//!
//! [`Host`] is a concrete type on purpose: behind a trait object every import would stay in every component, and an import
//! without a grant is refused at load. With a concrete type, a capability that is never called is not imported.

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

/// Capabilities of one call.
///
/// Logging, explanations, the clock and random numbers need no grant; every other capability needs one as soon as the
/// handler's code calls it anywhere.
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

    /// Writes a line to the agent's log, with the names of the handler and the Configuration. Lines are cut after 4 KiB; a
    /// handler may write at most 15 in 10 s. [`debug`](Self::debug), [`info`](Self::info), [`warn`](Self::warn) and
    /// [`error`](Self::error) are shortcuts.
    pub fn log(&self, level: Level, message: impl AsRef<str>) {
        self.imports.log(level, message.as_ref());
    }

    /// Logs a line for the handler's author; dropped unless the agent runs with `debug`.
    pub fn debug(&self, message: impl AsRef<str>) {
        self.log(Level::Debug, message);
    }

    /// Logs a line of interest in normal operation.
    pub fn info(&self, message: impl AsRef<str>) {
        self.log(Level::Info, message);
    }

    /// Logs a problem that the handler can work around.
    pub fn warn(&self, message: impl AsRef<str>) {
        self.log(Level::Warn, message);
    }

    /// Logs a problem that an operator should act on.
    pub fn error(&self, message: impl AsRef<str>) {
        self.log(Level::Error, message);
    }

    /// Explains why a candidate is not a device: `subject` identifies it to an operator (a path, an address), `rule` is the
    /// part of the details that excluded it, `reason` says what did not match. Shown by `leafhost status configuration` and
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

    /// Returns the time of the host's monotonic clock. Times saved in a cursor stay comparable with those of later calls;
    /// the epoch is arbitrary.
    pub fn now(&self) -> Duration {
        self.imports.now()
    }

    /// Returns the time since the start of the call.
    pub fn elapsed(&self) -> Duration {
        self.imports.now().saturating_sub(self.started)
    }

    /// Returns true while less than 80 % of the call's wall-clock budget is used. After that, answer
    /// [`partial`](crate::Discovery::partial) and continue at the next call: a call that exceeds its budget is ended and
    /// its answer lost.
    pub fn has_time(&self) -> bool {
        !self.time_left().is_zero()
    }

    /// Returns the time until 80 % of the call's wall-clock budget is used. Use it as the [`limit`](Self::within) of work
    /// before the answer, even if that has to be partial.
    pub fn time_left(&self) -> Duration {
        let to_use = self.wall.saturating_mul(4) / 5;
        to_use.saturating_sub(self.elapsed())
    }

    /// Returns a random number; not for secrets.
    pub fn random(&self) -> u64 {
        self.imports.random()
    }

    /// Returns access to the devices of the node. Needs the grant `udev`.
    pub fn udev(&self) -> Udev<'_> {
        Udev(self)
    }
}
