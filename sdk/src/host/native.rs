//! Sends every call to a [`FakeHost`](crate::testing::FakeHost) in native builds.

use std::future::{Ready, ready};
use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::net::{Error, NetworkInterface};
use crate::testing::State;

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

    pub fn park(&self) {
        self.clock.park();
    }

    pub async fn sleep_until(&self, end: Duration) {
        self.clock.sleep_until(end).await;
    }

    pub fn interfaces(&self) -> Vec<NetworkInterface> {
        self.network.interfaces.borrow().clone()
    }

    pub fn resolve(&self, name: &str) -> Ready<Result<Vec<IpAddr>, Error>> {
        ready(self.look_up(name))
    }
}
