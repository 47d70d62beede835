//! The grants applied to the current interfaces: decides if an address may be reached. Denies what no entry allows.
//!
//! An IPv6 address that only wraps an IPv4 one counts as that IPv4 address. Loopback, link-local, multicast, broadcast, metadata services,
//! the node's own addresses and the networks of its containers are part of no wide network and not of `lan`: an entry allows such an
//! address only if the whole network of the entry lies in that range. Does not know sockets.

mod containers;
mod ranges;
#[cfg(test)]
mod tests;
mod view;

use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};

use glob::{MatchOptions, Pattern};

use self::ranges::{Special, is_link_local};
use self::view::View;
use crate::grants::{HostPorts, NetPorts, NetworkGrants};
use crate::{Interface, Interfaces, Network, NetworkError};

/// Match options of host names: case does not matter, and `*` also matches dots.
const NAMES: MatchOptions = MatchOptions {
    case_sensitive: false,
    require_literal_separator: false,
    require_literal_leading_dot: false,
};

/// Reason why something is not allowed, worded for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

/// Network policy of a handler; cheap to clone.
#[derive(Debug, Clone)]
pub struct Policy {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    grants: Arc<NetworkGrants>,
    network: Network,
    /// Patterns of `interfaces`; `None` if the grants name none. An invalid pattern matches nothing.
    interfaces: Option<Vec<Pattern>>,
    names: Vec<Pattern>,
    seen: Mutex<(Arc<Interfaces>, Arc<View>)>,
}

impl Policy {
    /// Creates the policy of a handler on this node.
    pub fn new(grants: Arc<NetworkGrants>, network: Network) -> Self {
        let patterns = |texts: &[String]| -> Vec<Pattern> {
            let pattern = |text: &String| Pattern::new(text.trim_end_matches('.')).ok();
            texts.iter().filter_map(pattern).collect()
        };
        let interfaces =
            (!grants.interfaces.is_empty()).then(|| patterns(grants.interfaces.as_slice()));
        let names = patterns(&grants.names);
        let now = network.interfaces().unwrap_or_default();
        let view = View::new(&now, interfaces.as_deref());
        Self {
            shared: Arc::new(Shared {
                grants,
                network,
                interfaces,
                names,
                seen: Mutex::new((now, Arc::new(view))),
            }),
        }
    }

    /// Returns the grants.
    pub fn grants(&self) -> &NetworkGrants {
        &self.shared.grants
    }

    /// Returns the network that the policy applies to.
    pub fn network(&self) -> &Network {
        &self.shared.network
    }

    /// Returns the interfaces that the handler may use now: granted, up, with addresses; sorted by index. Returns none if the agent no longer
    /// follows the interfaces.
    pub fn interfaces(&self) -> Vec<Interface> {
        let Ok(view) = self.view() else {
            return Vec::new();
        };
        let usable = view.granted.iter().filter(|i| !i.addresses.is_empty());
        usable.cloned().collect()
    }

    /// Checks that a socket may be bound to the address: port 0 of the unspecified address or of an address of a granted interface.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Denied> {
        let address = canonical(address);
        let denied = |why: &str| Denied(format!("bind to {address}: {why}"));
        let grants = self.grants();
        if grants.udp.is_empty() && grants.tcp.is_empty() {
            return Err(denied(
                "neither `network.udp` nor `network.tcp` has entries",
            ));
        }
        if address.port() != 0 {
            return Err(denied("only port 0 can be bound, which takes a free one"));
        }
        if address.ip().is_unspecified() {
            return Ok(());
        }
        let view = self.view().map_err(|error| denied(&error.to_string()))?;
        let has = |interface: &Interface| {
            let mut addresses = interface.addresses.iter().map(ipnet::IpNet::addr);
            // IPv4 has no scope.
            let is_elsewhere = is_link_local(address.ip())
                && matches!(address, SocketAddr::V6(v6) if v6.scope_id() != interface.index);
            addresses.any(|own| own == address.ip()) && !is_elsewhere
        };
        if view.granted.iter().any(has) {
            return Ok(());
        }
        Err(denied(
            "not the address of an interface that is up and that `network.interfaces` grants (a link-local one needs its \
             scope id)",
        ))
    }

    /// Checks that a datagram may be sent to the address.
    pub fn send(&self, address: SocketAddr) -> Result<(), Denied> {
        let address = canonical(address);
        self.by_net("send to", "udp", self.grants().udp.iter(), address)
    }

    /// Checks that a socket that is not bound to an address may send a datagram to the address. The kernel then chooses the interface for an
    /// IPv4 group, so every interface that could carry the datagram must be granted. Other addresses pass.
    pub fn send_unbound(&self, address: SocketAddr) -> Result<(), Denied> {
        let address = canonical(address);
        if !address.is_ipv4() || !address.ip().is_multicast() {
            return Ok(());
        }
        let denied = |error| Denied(format!("send to {address}: {error}"));
        let view = self.view().map_err(denied)?;
        let now = self.shared.network.interfaces().map_err(denied)?;
        let leads_elsewhere = |interface: &&Interface| {
            interface.up
                && !interface.loopback
                && interface.addresses.iter().any(|net| net.addr().is_ipv4())
                && view.interface(interface.index).is_none()
        };
        match now.list.iter().find(leads_elsewhere) {
            None => Ok(()),
            Some(interface) => Err(Denied(format!(
                "send to {address} from 0.0.0.0: it may leave on {}, which `network.interfaces` does not grant; the handler \
                 must bind its sockets to addresses of granted interfaces only",
                interface.name
            ))),
        }
    }

    /// Checks that a datagram from the address may be received. `asked` are the addresses that the socket was allowed to send to. A datagram to
    /// a group may be answered by anyone in `lan`, from any port; one to an IPv6 group only on the interface it was sent to, including from
    /// link-local addresses; one to a single address only by that address.
    pub fn receive(&self, address: SocketAddr, asked: &[SocketAddr]) -> Result<(), Denied> {
        let address = canonical(address);
        let denied = |error| Denied(format!("receive from {address}: {error}"));
        let view = self.view().map_err(denied)?;
        let answers = |asked: &SocketAddr| {
            let asked = canonical(*asked);
            match (asked, address) {
                (SocketAddr::V4(asked), SocketAddr::V4(from)) if asked.ip().is_multicast() => {
                    view.is_lan(IpAddr::V4(*from.ip()))
                }
                (SocketAddr::V6(asked), SocketAddr::V6(from)) if asked.ip().is_multicast() => {
                    view.interface(asked.scope_id()).is_some_and(|interface| {
                        if from.ip().is_unicast_link_local() {
                            from.scope_id() == interface.index
                        } else {
                            view.is_lan_of(interface, IpAddr::V6(*from.ip()))
                        }
                    })
                }
                (SocketAddr::V6(asked), SocketAddr::V6(from)) => {
                    asked.ip() == from.ip() && asked.scope_id() == from.scope_id()
                }
                (asked, from) => asked.ip() == from.ip(),
            }
        };
        if asked.iter().any(answers) {
            return Ok(());
        }
        self.by_net("receive from", "udp", self.grants().udp.iter(), address)
    }

    /// Checks that a connection to the address may be made.
    pub fn connect(&self, address: SocketAddr) -> Result<(), Denied> {
        let address = canonical(address);
        self.by_net("connect to", "tcp", self.grants().tcp.iter(), address)
    }

    /// Checks that a request to `host`, which resolved to that address, may be sent.
    pub fn request(&self, host: &str, address: SocketAddr) -> Result<(), Denied> {
        let address = canonical(address);
        let nets = self.grants().http.iter().filter_map(|entry| match entry {
            HostPorts::Net(net) => Some(net),
            HostPorts::Name(..) => None,
        });
        let what = if host.parse() == Ok(address.ip()) {
            "send a request to".to_owned()
        } else {
            format!("send a request for {host:?} to")
        };
        self.by_net(&what, "http", nets, address).or_else(|denied| {
            let is_named = self.named(host).any(|ports| ports.contain(address.port()));
            match self.view() {
                Ok(view) if is_named && view.specials(address.ip()).next().is_none() => Ok(()),
                _ => Err(denied),
            }
        })
    }

    /// Checks that the name may be looked up: it matches `names`, or an `http` entry has it. An address written as text is not a name and is
    /// allowed.
    pub fn look_up(&self, name: &str) -> Result<(), Denied> {
        let bare = name.strip_suffix('.').unwrap_or(name);
        let inner = bare
            .strip_prefix('[')
            .and_then(|rest| rest.strip_suffix(']'));
        if inner.unwrap_or(bare).parse::<IpAddr>().is_ok() {
            return Ok(());
        }
        if !is_name(bare) {
            let start: String = name.chars().take(64).collect();
            return Err(Denied(format!(
                "look up {start:?}: that is not a host name"
            )));
        }
        let fits = |pattern: &Pattern| pattern.matches_with(bare, NAMES);
        if self.shared.names.iter().any(fits) || self.named(bare).next().is_some() {
            return Ok(());
        }
        Err(Denied(format!(
            "look up {name:?}: no entry of `network.names` or `network.http` has it"
        )))
    }

    /// Checks that a datagram to that group and port may wake the handler.
    pub fn listen(&self, group: IpAddr, port: u16) -> Result<(), Denied> {
        let group = group.to_canonical();
        let has = |entry: &NetPorts| {
            entry.net.is_some_and(|net| net.contains(&group)) && entry.ports.contain(port)
        };
        let why = if !group.is_multicast() {
            "not a multicast group"
        } else if self.grants().multicast.iter().any(has) {
            return Ok(());
        } else {
            "no entry of `network.multicast` has it"
        };
        let address = SocketAddr::new(group, port);
        Err(Denied(format!("listen to {address}: {why}")))
    }

    /// Returns the ports of the `http` entries with that name.
    fn named(&self, host: &str) -> impl Iterator<Item = crate::grants::Ports> {
        let host = host.strip_suffix('.').unwrap_or(host);
        self.grants()
            .http
            .iter()
            .filter_map(move |entry| match entry {
                HostPorts::Name(name, ports) if name.eq_ignore_ascii_case(host) => Some(*ports),
                _ => None,
            })
    }

    fn by_net<'a>(
        &self,
        what: &str,
        grant: &str,
        mut entries: impl Iterator<Item = &'a NetPorts>,
        address: SocketAddr,
    ) -> Result<(), Denied> {
        let denied = |why: String| Err(Denied(format!("{what} {address}: {why}")));
        let view = match self.view() {
            Ok(view) => view,
            Err(error) => return denied(error.to_string()),
        };
        if address.port() == 0 {
            return denied("port 0 is not a peer's".to_owned());
        }
        let specials: Vec<&Special> = view.specials(address.ip()).collect();
        let has = |entry: &NetPorts| {
            let fits = match entry.net {
                None => view.is_lan(address.ip()),
                Some(net) => {
                    net.contains(&address.ip()) && specials.iter().all(|s| s.net.contains(&net))
                }
            };
            fits && entry.ports.contain(address.port())
        };
        if !entries.any(has) {
            // The narrowest range is the most specific reason.
            let narrowest = specials
                .iter()
                .max_by_key(|special| special.net.prefix_len());
            return denied(match narrowest {
                None => format!("no entry of `network.{grant}` has it"),
                Some(Special { net, what }) => format!(
                    "{what} is in no wide network; an entry of `network.{grant}` inside {net} would allow it"
                ),
            });
        }
        if let SocketAddr::V6(v6) = address
            && (v6.ip().is_unicast_link_local() || v6.ip().is_multicast())
            && view.interface(v6.scope_id()).is_none()
        {
            return denied("needs the scope id of an interface that is up and granted".to_owned());
        }
        Ok(())
    }

    fn view(&self) -> Result<Arc<View>, NetworkError> {
        let now = self.shared.network.interfaces()?;
        let mut seen = self
            .shared
            .seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if !Arc::ptr_eq(&seen.0, &now) {
            let view = View::new(&now, self.shared.interfaces.as_deref());
            *seen = (now, Arc::new(view));
        }
        Ok(seen.1.clone())
    }
}

/// Converts an IPv6 address that wraps an IPv4 one to that one.
pub(crate) fn canonical(mut address: SocketAddr) -> SocketAddr {
    address.set_ip(address.ip().to_canonical());
    address
}

/// Returns true if the address can be a peer: the kernel takes the unspecified address for this machine.
pub(crate) fn is_peer(ip: IpAddr) -> bool {
    let is_broadcast = matches!(ip, IpAddr::V4(ip) if ip.is_broadcast());
    !ip.is_unspecified() && !ip.is_multicast() && !is_broadcast
}

/// Returns true if the text can be a host name: at most 253 bytes in labels of 1 to 63 letters, digits, `-` and `_`.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    text.len() <= 253 && text.split('.').all(is_label)
}

/// Returns true if the text can be a host name and none of its labels begins or ends with `-`.
pub(crate) fn is_host(text: &str) -> bool {
    let is_good = |label: &str| !label.starts_with('-') && !label.ends_with('-');
    is_name(text) && text.split('.').all(is_good)
}
