//! UDP sockets on `wasi:sockets/udp`.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::rc::Rc;

use wasip2::io::poll::Pollable;
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::network::ErrorCode;
use wasip2::sockets::udp::{
    IncomingDatagram, IncomingDatagramStream, OutgoingDatagram, OutgoingDatagramStream,
    UdpSocket as Resource,
};
use wasip2::sockets::udp_create_socket::create_udp_socket;

use super::address::{self, from_wasi, to_wasi};
use super::reactor::Reactor;
use crate::net::Error;

/// Size requested for the system's receive buffer; the system may grant less.
const RECEIVE_BUFFER: u64 = 1 << 20;

/// Number of datagrams taken from the host at once.
const BATCH: u64 = 16;

/// Bound UDP socket. Fields drop in declaration order: child resources before the socket.
#[derive(Debug)]
pub struct UdpSocket {
    reactor: Rc<Reactor>,
    local: SocketAddr,
    received: RefCell<VecDeque<IncomingDatagram>>,
    readable: Rc<Pollable>,
    writable: Rc<Pollable>,
    incoming: IncomingDatagramStream,
    outgoing: OutgoingDatagramStream,
    _socket: Resource,
}

impl UdpSocket {
    pub fn bind(reactor: &Rc<Reactor>, local: SocketAddr) -> Result<Self, Error> {
        let failed = |code| address::error(code, || format!("udp from {local}"));
        let socket = create_udp_socket(address::family(local)).map_err(failed)?;
        let network = instance_network();
        socket
            .start_bind(&network, to_wasi(local))
            .map_err(failed)?;
        loop {
            match socket.finish_bind() {
                Ok(()) => break,
                Err(ErrorCode::WouldBlock) => socket.subscribe().block(),
                Err(code) => return Err(failed(code)),
            }
        }
        let _ = socket.set_receive_buffer_size(RECEIVE_BUFFER);
        let local = socket.local_address().map_err(failed)?;
        let (incoming, outgoing) = socket.stream(None).map_err(failed)?;
        Ok(Self {
            reactor: Rc::clone(reactor),
            local: from_wasi(local),
            received: RefCell::default(),
            readable: Rc::new(incoming.subscribe()),
            writable: Rc::new(outgoing.subscribe()),
            incoming,
            outgoing,
            _socket: socket,
        })
    }

    pub fn local(&self) -> SocketAddr {
        self.local
    }

    pub async fn send_to(&self, payload: &[u8], to: SocketAddr) -> Result<(), Error> {
        let failed = |code| address::error(code, || format!("udp {to}"));
        let datagrams = [OutgoingDatagram {
            data: payload.to_vec(),
            remote_address: Some(to_wasi(to)),
        }];
        loop {
            let permitted = self.outgoing.check_send().map_err(failed)?;
            if permitted > 0 && self.outgoing.send(&datagrams).map_err(failed)? > 0 {
                return Ok(());
            }
            self.reactor.ready(&self.writable).await;
        }
    }

    /// Returns the next datagram, if one has arrived.
    pub fn take(&self) -> Result<Option<(Vec<u8>, SocketAddr)>, Error> {
        let mut received = self.received.borrow_mut();
        if received.is_empty() {
            let batch = self.incoming.receive(BATCH);
            received.extend(batch.map_err(|code| {
                address::error(code, || format!("udp received at {}", self.local))
            })?);
        }
        let datagram = received.pop_front();
        Ok(datagram.map(|datagram| (datagram.data, from_wasi(datagram.remote_address))))
    }

    /// Waits until a datagram may have arrived.
    pub async fn arrival(&self) {
        self.reactor.ready(&self.readable).await;
    }
}
