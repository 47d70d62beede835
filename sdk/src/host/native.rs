//! Sends every call to a [`FakeHost`](crate::testing::FakeHost) in native builds.

use std::future::{Ready, ready};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::bindings::leafhost::udev::devices::Error;
use crate::net::{self, NetworkInterface};
use crate::testing::State;
use crate::udev::{Device, Owner, Rule};

pub(crate) use crate::testing::{TcpStream, UdpSocket};

/// State shared by a fake host and every [`Host`](crate::Host) created from it.
pub type Imports = Rc<State>;

impl State {
    pub fn now(&self) -> Duration {
        self.clock.look()
    }

    /// Returns the time of the clock that timers use; unlike [`now`](Self::now), reading it does not advance it.
    pub fn clock(&self) -> Duration {
        self.clock.now()
    }

    pub fn udev_find(&self, rules: &[Rule]) -> Result<Vec<Device>, Error> {
        let (devices, missed) = self.udev.find(rules)?;
        for missed in missed {
            State::skipped(self, &missed.subject, &missed.rule, &missed.reason);
        }
        Ok(devices)
    }

    pub fn udev_read(&self, attributes: &[(String, String)]) -> Result<Vec<Option<String>>, Error> {
        self.udev.read(attributes)
    }

    pub fn udev_owners(&self, devnodes: &[String]) -> Result<Vec<Option<Owner>>, Error> {
        self.udev.owners(devnodes)
    }

    pub fn park(&self) {
        self.clock.park();
    }

    pub async fn sleep_until(&self, end: Duration) {
        self.clock.sleep_until(end).await;
    }

    pub fn interfaces(&self) -> Vec<NetworkInterface> {
        self.network.interfaces.borrow().clone()
    }

    pub fn resolve(&self, name: &str) -> Ready<Result<Vec<IpAddr>, net::Error>> {
        ready(self.look_up(name))
    }
}
