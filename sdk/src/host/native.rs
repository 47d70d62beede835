//! Sends every call to a [`FakeHost`](crate::testing::FakeHost) in native builds.

use std::future::{Ready, ready};
use std::net::{IpAddr, SocketAddr};
use std::rc::Rc;
use std::time::Duration;

use crate::Level;
use crate::bindings::leafhost::udev::devices::Error;
use crate::http::{Request, Response};
use crate::net::{self, NetworkInterface};
use crate::testing::State;
use crate::udev::{Device, Rule};

pub(crate) use crate::testing::{TcpStream, UdpSocket};

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
        self.0.clock.look()
    }

    /// The clock of the timers.
    pub fn clock(&self) -> Duration {
        self.0.clock.now()
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

    pub fn park(&self) {
        self.0.clock.park();
    }

    pub async fn sleep_until(&self, end: Duration) {
        self.0.clock.sleep_until(end).await;
    }

    pub fn interfaces(&self) -> Vec<NetworkInterface> {
        self.0.network.interfaces.borrow().clone()
    }

    pub fn udp(&self, local: SocketAddr) -> Result<UdpSocket, net::Error> {
        UdpSocket::bind(&self.0, local)
    }

    pub async fn connect(&self, remote: SocketAddr) -> Result<TcpStream, net::Error> {
        TcpStream::connect(&self.0, remote).await
    }

    pub fn resolve(&self, name: &str) -> Ready<Result<Vec<IpAddr>, net::Error>> {
        ready(self.0.resolve(name))
    }

    pub async fn http(&self, request: Request) -> Result<Response, net::Error> {
        Rc::clone(&self.0).http(request).await
    }
}
