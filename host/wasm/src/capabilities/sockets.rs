//! `wasi:sockets`: linked, because libraries import it, and denied where a socket is made or a name looked up. There is no
//! grant for it in this version; what was asked for is counted.

use std::sync::Arc;

use wasmtime::component::{HasSelf, Linker, Resource};
use wasmtime_wasi::p2::bindings::sockets::ip_name_lookup::{self, ResolveAddressStream};
use wasmtime_wasi::p2::bindings::sockets::network::{
    self, ErrorCode, IpAddress, IpAddressFamily, Network,
};
use wasmtime_wasi::p2::bindings::sockets::{tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{DynPollable, SocketError, SocketResult, TcpSocket, UdpSocket};

use super::CallState;
use crate::record::Record;

/// Where denials are counted.
pub(crate) struct SocketState {
    pub(crate) record: Arc<Record>,
}

/// Links it, over what WASI has under these names.
pub(super) fn add_to_linker(
    linker: &mut Linker<CallState>,
    state: fn(&mut CallState) -> &mut SocketState,
) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    tcp_create_socket::add_to_linker::<_, HasSelf<SocketState>>(linker, state)?;
    udp_create_socket::add_to_linker::<_, HasSelf<SocketState>>(linker, state)?;
    ip_name_lookup::add_to_linker::<_, HasSelf<SocketState>>(linker, state)?;
    linker.allow_shadowing(false);
    Ok(())
}

impl SocketState {
    fn deny<T>(&self, what: &str) -> SocketResult<T> {
        self.record.deny(what);
        Err(ErrorCode::AccessDenied.into())
    }
}

impl network::Host for SocketState {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(
        &mut self,
        _error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        Ok(None)
    }
}

impl network::HostNetwork for SocketState {
    fn drop(&mut self, _network: Resource<Network>) -> wasmtime::Result<()> {
        Ok(())
    }
}

impl tcp_create_socket::Host for SocketState {
    fn create_tcp_socket(&mut self, _family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        self.deny("a TCP socket")
    }
}

impl udp_create_socket::Host for SocketState {
    async fn create_udp_socket(
        &mut self,
        _family: IpAddressFamily,
    ) -> SocketResult<Resource<UdpSocket>> {
        self.deny("a UDP socket")
    }
}

impl ip_name_lookup::Host for SocketState {
    fn resolve_addresses(
        &mut self,
        _network: Resource<Network>,
        name: String,
    ) -> SocketResult<Resource<ResolveAddressStream>> {
        self.deny(&format!("the address of {name}"))
    }
}

/// No stream of addresses is ever handed out, so these are called with a forged handle only.
impl ip_name_lookup::HostResolveAddressStream for SocketState {
    fn resolve_next_address(
        &mut self,
        _stream: Resource<ResolveAddressStream>,
    ) -> SocketResult<Option<IpAddress>> {
        self.deny("an address")
    }

    fn subscribe(
        &mut self,
        _stream: Resource<ResolveAddressStream>,
    ) -> wasmtime::Result<Resource<DynPollable>> {
        Err(wasmtime::Error::msg("there is no such stream"))
    }

    fn drop(&mut self, _stream: Resource<ResolveAddressStream>) -> wasmtime::Result<()> {
        Ok(())
    }
}
