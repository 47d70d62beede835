//! Network of a fake host: interfaces, names, denials, and the handler's contacts.

use std::cell::{Cell, RefCell};
use std::fmt::{self, Display};
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::time::Duration;

use super::{FakeHost, State, http, tcp, udp};
use crate::net::{Address, Error, LOOK_UPS, NetworkInterface};

/// Datagram, connection, request or lookup of a handler that was not denied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contact {
    /// Time of the contact by the host's clock.
    pub at: Duration,
    /// Source address, for datagrams.
    pub from: Option<SocketAddr>,
    /// Target: `udp 239.255.255.250:3702`, `tcp 192.168.7.9:4840`, `http POST http://192.168.7.9/onvif`, `name plc1`.
    pub to: String,
}

#[derive(Debug, Default)]
pub(crate) struct Network {
    pub interfaces: RefCell<Vec<NetworkInterface>>,
    pub udp: udp::Peers,
    pub tcp: tcp::Servers,
    pub http: http::Servers,
    names: RefCell<Vec<(String, Vec<IpAddr>)>>,
    denied: RefCell<Vec<String>>,
    contacts: RefCell<Vec<Contact>>,
    /// Number of contacts before this call.
    before: Cell<usize>,
    ports: Cell<u16>,
}

impl FakeHost {
    /// Adds a network interface with addresses such as `192.168.7.2/24` and `fe80::1/64`.
    #[must_use]
    pub fn interface(
        self,
        name: &str,
        index: u32,
        addresses: impl IntoIterator<Item = impl AsRef<str>>,
    ) -> Self {
        let addresses = addresses.into_iter().map(|address| {
            let (ip, prefix) = address.as_ref().split_once('/').unwrap_or_default();
            Address {
                ip: parsed(&ip),
                prefix: parsed(&prefix),
            }
        });
        let mut interface = NetworkInterface {
            name: name.to_owned(),
            index,
            addresses: addresses.collect(),
        };
        interface.addresses.sort_by_key(|address| address.ip);
        let mut interfaces = self.0.network.interfaces.borrow_mut();
        interfaces.push(interface);
        interfaces.sort_by_key(|interface| interface.index);
        drop(interfaces);
        self
    }

    /// Adds a host name with its addresses.
    #[must_use]
    pub fn name(self, name: &str, addresses: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        let addresses = addresses.into_iter();
        let addresses = addresses.map(|address| parsed(&address.as_ref())).collect();
        let name = (name.to_owned(), addresses);
        self.0.network.names.borrow_mut().push(name);
        self
    }

    /// Denies an address (`192.168.7.9`), an address with a port (`192.168.7.9:80`), or a host name, as grants would.
    /// Datagrams from a denied address do not arrive.
    #[must_use]
    pub fn deny(self, address: impl Display) -> Self {
        let denied = &self.0.network.denied;
        denied.borrow_mut().push(address.to_string());
        self
    }

    /// Returns all contacts so far.
    pub fn contacts(&self) -> Vec<Contact> {
        self.0.network.contacts.borrow().clone()
    }
}

impl State {
    pub(super) fn contact(&self, from: Option<SocketAddr>, to: String) {
        let at = self.clock.now();
        let contact = Contact { at, from, to };
        self.network.contacts.borrow_mut().push(contact);
    }

    /// Marks the start of a call; earlier contacts do not count towards its limits.
    pub(super) fn begin_call(&self) {
        let before = self.network.contacts.borrow().len();
        self.network.before.set(before);
    }

    /// Returns the number of contacts of a kind in this call.
    pub(super) fn contacted(&self, kind: &str) -> usize {
        let contacts = self.network.contacts.borrow();
        let own = contacts.iter().skip(self.network.before.get());
        own.filter(|one| one.to.starts_with(kind)).count()
    }

    pub(crate) fn look_up(&self, name: &str) -> Result<Vec<IpAddr>, Error> {
        if self.network.denies(name) {
            return Err(Error::Denied(format!("name {name}")));
        }
        if self.contacted("name ") >= LOOK_UPS {
            let what = format!("look up more than {LOOK_UPS} names in one call");
            return Err(Error::Denied(what));
        }
        self.contact(None, format!("name {name}"));
        self.network
            .addresses(name)
            .ok_or_else(|| Error::Name(format!("{name:?}: no such name")))
    }
}

impl Network {
    pub fn denies(&self, what: &str) -> bool {
        self.denied.borrow().iter().any(|denied| denied == what)
    }

    pub fn denies_address(&self, address: SocketAddr) -> bool {
        let plain = SocketAddr::new(address.ip(), address.port());
        let texts = [
            address.to_string(),
            plain.to_string(),
            address.ip().to_string(),
        ];
        texts.iter().any(|text| self.denies(text))
    }

    pub fn addresses(&self, name: &str) -> Option<Vec<IpAddr>> {
        let names = self.names.borrow();
        let (_, addresses) = names.iter().find(|(other, _)| other == name)?;
        Some(addresses.clone())
    }

    /// Returns the source address that the system would choose for a datagram to `to`.
    pub fn source(&self, to: IpAddr) -> Option<IpAddr> {
        let interfaces = self.interfaces.borrow();
        let addresses = || interfaces.iter().flat_map(|other| &other.addresses);
        let near = addresses().find(|address| address.contains(to));
        let any = || addresses().find(|address| address.ip.is_ipv4() == to.is_ipv4());
        near.or_else(any).map(|address| address.ip)
    }

    /// Returns a port that no socket has had, from 40,000 on.
    pub fn port(&self) -> u16 {
        let used = self.ports.get();
        self.ports.set(used.wrapping_add(1));
        40_000_u16.wrapping_add(used)
    }
}

/// Parses a value from a test; panics if it is malformed.
#[expect(
    clippy::panic,
    reason = "a mistake in a test, which has nobody to report it to"
)]
pub(super) fn parsed<T: FromStr>(text: &impl Display) -> T {
    let text = text.to_string();
    let Ok(value) = text.parse() else {
        panic!("cannot read {text:?} as {}", std::any::type_name::<T>());
    };
    value
}

/// Returns true if a fake at `own` answers to `asked`; the scope is compared only if the fake has one.
pub(super) fn answers_to(own: SocketAddr, asked: SocketAddr) -> bool {
    match (own, asked) {
        (SocketAddr::V6(own), SocketAddr::V6(mut asked)) => {
            if own.scope_id() == 0 {
                asked.set_scope_id(0);
            }
            own == asked
        }
        _ => own == asked,
    }
}

/// Closure of a test, wrapped to implement `Debug`.
pub(super) struct Closure<F>(pub F);

impl<F> fmt::Debug for Closure<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closure")
    }
}

#[cfg(test)]
mod tests;
