//! `leafhost:net`: the interfaces that a handler may use. Needs the grant `network`.

use super::CallState;
use crate::bindings::leafhost::net::interfaces;

impl interfaces::Host for CallState {
    async fn granted(&mut self) -> wasmtime::Result<Vec<interfaces::NetworkInterface>> {
        let policy = self.reach.policy("see the network interfaces").ok();
        let interfaces = policy.map_or_else(Vec::new, leafhost_net::Policy::interfaces);
        Ok(interfaces.into_iter().map(guest_interface).collect())
    }
}

fn guest_interface(interface: leafhost_net::Interface) -> interfaces::NetworkInterface {
    let addresses = interface.addresses.iter().map(|net| interfaces::Address {
        ip: net.addr().to_string(),
        prefix_length: net.prefix_len(),
    });
    interfaces::NetworkInterface {
        addresses: addresses.collect(),
        name: interface.name,
        index: interface.index,
    }
}
