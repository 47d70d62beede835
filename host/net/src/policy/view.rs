//! A snapshot of the interfaces as the grants see them.

use std::net::IpAddr;

use glob::Pattern;
use ipnet::IpNet;

use super::containers::is_containers;
use super::ranges::{self, Special, is_link_local};
use crate::{Interface, Interfaces};

/// State derived from the interfaces, computed once per snapshot.
#[derive(Debug, Default)]
pub(super) struct View {
    /// Granted interfaces that are up.
    pub(super) granted: Vec<Interface>,
    special: Vec<Special>,
}

impl View {
    /// Applies `patterns` to a snapshot; `None` grants the default interfaces.
    pub(super) fn new(interfaces: &Interfaces, patterns: Option<&[Pattern]>) -> Self {
        let mut view = Self {
            granted: Vec::new(),
            special: ranges::fixed(),
        };
        for interface in &interfaces.list {
            let of_containers = is_containers(&interface.name);
            let is_granted = match patterns {
                Some(patterns) => patterns.iter().any(|p| p.matches(&interface.name)),
                None => interface.multicast && !interface.loopback && !of_containers,
            };
            let specials = ranges::of(interface, of_containers && !is_granted);
            view.special.extend(specials);
            if is_granted && interface.up {
                view.granted.push(interface.clone());
            }
        }
        view.special
            .extend(interfaces.local.iter().copied().filter_map(ranges::local));
        let wrapped: Vec<Special> = view.special.iter().flat_map(ranges::wrapped).collect();
        view.special.extend(wrapped);
        view
    }

    /// Returns the granted interface with that index.
    pub(super) fn interface(&self, index: u32) -> Option<&Interface> {
        self.granted
            .iter()
            .find(|interface| interface.index == index)
    }

    /// Returns true if the address is in `lan`: on a network directly attached to a granted interface, and not special.
    pub(super) fn is_lan(&self, address: IpAddr) -> bool {
        self.granted.iter().any(|i| attached(i, address)) && self.specials(address).next().is_none()
    }

    /// Returns true if the address is in the part of `lan` that is attached to that interface.
    pub(super) fn is_lan_of(&self, interface: &Interface, address: IpAddr) -> bool {
        attached(interface, address) && self.specials(address).next().is_none()
    }

    /// Returns the special ranges that contain the address.
    pub(super) fn specials(&self, address: IpAddr) -> impl Iterator<Item = &Special> {
        let is_in = move |special: &&Special| special.net.contains(&address);
        self.special.iter().filter(is_in)
    }
}

/// Returns true if the address is on a network of the interface; a network with room for one address does not count.
fn attached(interface: &Interface, address: IpAddr) -> bool {
    let is_network =
        |net: &&IpNet| net.prefix_len() < net.max_prefix_len() && !is_link_local(net.addr());
    let mut networks = interface.addresses.iter().filter(is_network);
    networks.any(|net| net.contains(&address))
}
