//! `wasi:sockets`: wasmtime's implementation, with a check before every use of an address. Linked for every handler, because libraries
//! import it; without the grant `network` no socket is created and no name is looked up.

use std::net::SocketAddr;
use std::sync::Arc;

use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::WasiCtxBuilder;
use wasmtime_wasi::p2::bindings::sockets::network::{self, ErrorCode, IpAddressFamily, Network};
use wasmtime_wasi::p2::bindings::sockets::{tcp_create_socket, udp_create_socket};
use wasmtime_wasi::p2::{SocketError, SocketResult, TcpSocket, UdpSocket};
use wasmtime_wasi::sockets::{SocketAddrUse, WasiSocketsCtxView, WasiSocketsView as _};

use super::CallState;
use super::reach::NetworkAccess;

mod names;

/// Maximum number of open sockets per call.
const SOCKETS: usize = 128;

/// Allows wasmtime's sockets to reach what the call may reach.
pub(super) fn open(builder: &mut WasiCtxBuilder, reach: &Arc<NetworkAccess>) {
    let open = reach.is_open();
    builder.allow_tcp(open).allow_udp(open);
    let reach = reach.clone();
    builder.socket_addr_check(move |address, purpose| {
        let reach = reach.clone();
        Box::pin(async move { may(&reach, address, purpose).await })
    });
}

async fn may(reach: &NetworkAccess, address: SocketAddr, purpose: SocketAddrUse) -> bool {
    let answer = match purpose {
        SocketAddrUse::TcpBind => reach.ask("bind a socket", |policy| policy.bind(address)),
        SocketAddrUse::UdpBind => reach.bind_udp(address),
        SocketAddrUse::TcpConnect => reach.connect(address),
        SocketAddrUse::UdpSend => reach.send(address),
        SocketAddrUse::UdpReceive => reach.receive(address).await,
        SocketAddrUse::TcpListen | SocketAddrUse::TcpAccept => {
            Err(reach.deny("listen for connections, which no grant allows"))
        }
    };
    answer.is_ok()
}

/// Links the interfaces that create sockets and look up names, replacing wasmtime's.
pub(super) fn add_to_linker(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    linker.allow_shadowing(true);
    tcp_create_socket::add_to_linker::<_, HasSockets>(linker, sockets)?;
    udp_create_socket::add_to_linker::<_, HasSockets>(linker, sockets)?;
    names::add_to_linker(linker)?;
    linker.allow_shadowing(false);
    Ok(())
}

struct HasSockets;

impl HasData for HasSockets {
    type Data<'a> = Sockets<'a>;
}

struct Sockets<'a> {
    wasi: WasiSocketsCtxView<'a>,
    reach: Arc<NetworkAccess>,
}

fn sockets(state: &mut CallState) -> Sockets<'_> {
    let reach = state.reach.clone();
    Sockets {
        wasi: state.sockets(),
        reach,
    }
}

impl Sockets<'_> {
    /// Checks that one more socket may be created.
    fn admit(&mut self, what: &str) -> SocketResult<()> {
        self.reach
            .policy(what)
            .map_err(|_| ErrorCode::AccessDenied)?;
        let open = self.wasi.table.iter_mut();
        let open = open.filter(|entry| entry.is::<TcpSocket>() || entry.is::<UdpSocket>());
        if open.count() >= SOCKETS {
            self.reach
                .deny(&format!("more than {SOCKETS} sockets at once"));
            return Err(ErrorCode::NewSocketLimit.into());
        }
        Ok(())
    }
}

impl network::Host for Sockets<'_> {
    fn convert_error_code(&mut self, error: SocketError) -> wasmtime::Result<ErrorCode> {
        error.downcast()
    }

    fn network_error_code(
        &mut self,
        error: Resource<wasmtime::Error>,
    ) -> wasmtime::Result<Option<ErrorCode>> {
        self.wasi.network_error_code(error)
    }
}

impl network::HostNetwork for Sockets<'_> {
    fn drop(&mut self, network: Resource<Network>) -> wasmtime::Result<()> {
        network::HostNetwork::drop(&mut self.wasi, network)
    }
}

impl tcp_create_socket::Host for Sockets<'_> {
    fn create_tcp_socket(&mut self, family: IpAddressFamily) -> SocketResult<Resource<TcpSocket>> {
        self.admit("a TCP socket")?;
        self.wasi.create_tcp_socket(family)
    }
}

impl udp_create_socket::Host for Sockets<'_> {
    async fn create_udp_socket(
        &mut self,
        family: IpAddressFamily,
    ) -> SocketResult<Resource<UdpSocket>> {
        self.admit("a UDP socket")?;
        self.wasi.create_udp_socket(family).await
    }
}
