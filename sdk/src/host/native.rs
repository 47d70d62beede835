//! The fake in the place of the imports: every call goes to a [`FakeHost`](crate::testing::FakeHost).

use std::rc::Rc;
use std::time::Duration;

use crate::Level;
use crate::bindings::leafhost::udev::devices::Error;
use crate::testing::State;
use crate::udev::{Device, Rule};

/// What a fake host and the [`Host`](crate::Host)s made from it share.
#[derive(Debug)]
pub struct Imports(pub(crate) Rc<State>);

impl Imports {
    pub fn log(&self, level: Level, message: &str) {
        self.0.log(level, message);
    }

    pub fn skipped(&self, subject: &str, rule: &str, reason: &str) {
        self.0.skipped(subject, rule, reason);
    }

    pub fn now(&self) -> Duration {
        self.0.now()
    }

    pub fn random(&self) -> u64 {
        self.0.random()
    }

    pub fn udev_find(&self, rules: &[Rule]) -> Result<Vec<Device>, Error> {
        self.0.udev.find(rules)
    }

    pub fn udev_read(&self, attributes: &[(String, String)]) -> Result<Vec<Option<String>>, Error> {
        self.0.udev.read(attributes)
    }
}
