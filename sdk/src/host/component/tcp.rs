//! TCP connections on `wasi:sockets/tcp`.

use std::net::SocketAddr;
use std::rc::Rc;

use wasip2::io::poll::Pollable;
use wasip2::io::streams::{InputStream, OutputStream, StreamError};
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::network::ErrorCode;
use wasip2::sockets::tcp::TcpSocket;
use wasip2::sockets::tcp_create_socket::create_tcp_socket;

use super::address::{self, to_wasi};
use super::reactor::Reactor;
use crate::net::Error;

/// TCP connection. Fields drop in declaration order: child resources before the socket.
#[derive(Debug)]
pub struct TcpStream {
    reactor: Rc<Reactor>,
    readable: Rc<Pollable>,
    writable: Rc<Pollable>,
    input: InputStream,
    output: OutputStream,
    _socket: TcpSocket,
}

impl TcpStream {
    pub async fn connect(reactor: &Rc<Reactor>, remote: SocketAddr) -> Result<Self, Error> {
        let failed = |code| address::error(code, || format!("tcp {remote}"));
        let socket = create_tcp_socket(address::family(remote)).map_err(failed)?;
        let network = instance_network();
        socket
            .start_connect(&network, to_wasi(remote))
            .map_err(failed)?;
        let connected = Rc::new(socket.subscribe());
        let (input, output) = loop {
            match socket.finish_connect() {
                Ok(streams) => break streams,
                Err(ErrorCode::WouldBlock) => reactor.ready(&connected).await,
                Err(code) => return Err(failed(code)),
            }
        };
        drop(connected);
        Ok(Self {
            reactor: Rc::clone(reactor),
            readable: Rc::new(input.subscribe()),
            writable: Rc::new(output.subscribe()),
            input,
            output,
            _socket: socket,
        })
    }

    pub async fn write_all(&mut self, mut bytes: &[u8]) -> Result<(), Error> {
        loop {
            let permitted = self.output.check_write().map_err(|_| Error::Closed)?;
            if permitted == 0 {
                self.reactor.ready(&self.writable).await;
            } else if bytes.is_empty() {
                // The host permits more only after it has passed on everything.
                return Ok(());
            } else {
                let permitted = usize::try_from(permitted).unwrap_or(usize::MAX);
                let (now, later) = bytes.split_at(permitted.min(bytes.len()));
                self.output.write(now).map_err(|_| Error::Closed)?;
                bytes = later;
            }
        }
    }

    pub async fn read(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        let max = u64::try_from(max).unwrap_or(u64::MAX);
        loop {
            match self.input.read(max) {
                Ok(bytes) if bytes.is_empty() && max > 0 => {
                    self.reactor.ready(&self.readable).await;
                }
                Ok(bytes) => return Ok(bytes),
                Err(StreamError::Closed) => return Ok(Vec::new()),
                Err(StreamError::LastOperationFailed(_)) => return Err(Error::Closed),
            }
        }
    }
}
