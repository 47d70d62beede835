//! The imports of the component. Each function calls one import, so that what is not called is not imported.

use std::time::{Duration, Instant};

use crate::Level;
use crate::bindings::leafhost;
use crate::udev::{Device, Rule};
use leafhost::udev::devices::Error;

/// The imports, and the instant the call began.
#[derive(Debug)]
pub struct Imports {
    started: Instant,
}

#[allow(
    clippy::unused_self,
    reason = "the fake in the place of the imports has state"
)]
impl Imports {
    pub fn new() -> Self {
        Self {
            started: Instant::now(),
        }
    }

    pub fn log(&self, level: Level, message: &str) {
        leafhost::log::log::write(level, message);
    }

    pub fn skipped(&self, subject: &str, rule: &str, reason: &str) {
        leafhost::explain::explain::skipped(subject, rule, reason);
    }

    pub fn now(&self) -> Duration {
        self.started.elapsed()
    }

    pub fn random(&self) -> u64 {
        use std::hash::{BuildHasher, RandomState};
        RandomState::new().hash_one(())
    }

    pub fn udev_find(&self, rules: &[Rule]) -> Result<Vec<Device>, Error> {
        leafhost::udev::devices::find(rules)
    }

    pub fn udev_read(&self, attributes: &[(String, String)]) -> Result<Vec<Option<String>>, Error> {
        leafhost::udev::devices::read(attributes)
    }
}
