//! Imports of the component. Each function calls one import, so that an unused import is not linked.

mod address;
mod http;
mod reactor;
mod tcp;
mod udp;

use std::net::IpAddr;
use std::rc::Rc;
use std::time::Duration;

use crate::Level;
use crate::bindings::leafhost;
use crate::http::{Request, Response};
use crate::net::{self, Address, NetworkInterface};
use crate::udev::{Device, Owner, Rule};
use leafhost::udev::devices::Error;
use reactor::Reactor;

pub use tcp::TcpStream;
pub use udp::UdpSocket;

/// Handle to the imports; the reactor does the waiting.
pub type Imports = Rc<Reactor>;

#[allow(
    clippy::unused_self,
    reason = "the fake in the place of the imports has state"
)]
impl Reactor {
    pub fn log(&self, level: Level, message: &str) {
        leafhost::log::log::write(level, message);
    }

    pub fn skipped(&self, subject: &str, rule: &str, reason: &str) {
        leafhost::explain::explain::skipped(subject, rule, reason);
    }

    /// Returns the time of the clock that timers use.
    pub fn clock(&self) -> Duration {
        self.now()
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

    pub fn udev_owners(&self, devnodes: &[String]) -> Result<Vec<Option<Owner>>, Error> {
        leafhost::udev::devices::owners(devnodes)
    }

    pub fn interfaces(&self) -> Vec<NetworkInterface> {
        let granted = leafhost::net::interfaces::granted();
        let interfaces = granted.into_iter().map(|interface| {
            let addresses = interface.addresses.iter().filter_map(|address| {
                Some(Address {
                    ip: address.ip.parse().ok()?,
                    prefix: address.prefix_length,
                })
            });
            NetworkInterface {
                addresses: addresses.collect(),
                name: interface.name,
                index: interface.index,
            }
        });
        interfaces.collect()
    }

    pub async fn resolve(&self, name: &str) -> Result<Vec<IpAddr>, net::Error> {
        address::resolve(self, name).await
    }

    pub async fn http(&self, request: Request) -> Result<Response, net::Error> {
        http::send(self, request).await
    }
}
