//! `leafhost:net`: the interfaces a handler may use. Needs the grant `network`.

use std::sync::Arc;

use wasmtime::component::{HasSelf, Linker};

use super::CallState;
use super::reach::Reach;
use crate::bindings::leafhost::net::interfaces;

/// What a call may see; nothing outside of `discover`.
pub(crate) struct NetState {
    pub(super) reach: Option<Arc<Reach>>,
}

/// Links it.
pub(super) fn add_to_linker(
    linker: &mut Linker<CallState>,
    state: fn(&mut CallState) -> &mut NetState,
) -> wasmtime::Result<()> {
    interfaces::add_to_linker::<_, HasSelf<NetState>>(linker, state)
}

impl interfaces::Host for NetState {
    async fn granted(&mut self) -> wasmtime::Result<Vec<interfaces::NetworkInterface>> {
        let policy = self
            .reach
            .as_ref()
            .and_then(|reach| reach.policy("see the network interfaces").ok());
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
