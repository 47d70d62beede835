//! Fake TCP servers, and connections to them.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt::Display;
use std::future::{Ready, pending, ready};
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use super::network::{Closure, answers_to, parsed};
use super::{FakeHost, State};
use crate::net::{CONNECTIONS, Error};

/// Reaction of a fake server to a connection or to bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TcpReaction {
    /// Bytes that the server sends.
    pub send: Vec<u8>,
    /// Closes the connection after `send`.
    pub close: bool,
    /// Delay before the reaction.
    pub after: Duration,
}

type Session = Box<dyn FnMut(&[u8]) -> TcpReaction>;
type Accept = Box<dyn FnMut() -> Session>;

#[derive(Debug)]
enum Server {
    Accepts(Closure<Accept>),
    Drips { bytes: Vec<u8>, every: Duration },
    Silent,
}

#[derive(Debug, Default)]
pub(crate) struct Servers(RefCell<Vec<(SocketAddr, Server)>>);

impl FakeHost {
    /// Adds a server. `accept` is called for each connection and returns the connection's handler, which is called with no
    /// bytes at first and then with the bytes of each write.
    #[must_use]
    pub fn tcp_server(
        self,
        address: impl Display,
        accept: impl FnMut() -> Box<dyn FnMut(&[u8]) -> TcpReaction> + 'static,
    ) -> Self {
        self.server(&address, Server::Accepts(Closure(Box::new(accept))))
    }

    /// Adds an address that never answers a connect.
    #[must_use]
    pub fn tcp_silent(self, address: impl Display) -> Self {
        self.server(&address, Server::Silent)
    }

    /// Adds a server that ignores its input and sends these bytes one at a time, with a pause before each.
    #[must_use]
    pub fn tcp_dripping(
        self,
        address: impl Display,
        bytes: impl Into<Vec<u8>>,
        every: Duration,
    ) -> Self {
        let bytes = bytes.into();
        self.server(&address, Server::Drips { bytes, every })
    }

    fn server(self, address: &impl Display, server: Server) -> Self {
        let server = (parsed(address), server);
        self.0.network.tcp.0.borrow_mut().push(server);
        self
    }
}

#[derive(Debug)]
pub(crate) struct TcpStream {
    state: Rc<State>,
    session: Option<Closure<Session>>,
    incoming: VecDeque<(Duration, Vec<u8>)>,
    closes: Option<Duration>,
}

impl State {
    /// Denies a further connection if the call has begun [`CONNECTIONS`] of them, including those of HTTP requests.
    pub(super) fn may_connect(&self) -> Result<(), Error> {
        if self.contacted("tcp ") + self.contacted("http ") >= CONNECTIONS {
            let what = format!("begin more than {CONNECTIONS} connections in one call");
            return Err(Error::Denied(what));
        }
        Ok(())
    }
}

impl TcpStream {
    pub async fn connect(state: &Rc<State>, remote: SocketAddr) -> Result<Self, Error> {
        if state.network.denies_address(remote) {
            return Err(Error::Denied(format!("tcp {remote}")));
        }
        state.may_connect()?;
        state.contact(None, format!("tcp {remote}"));
        let Some(stream) = Self::open(state, remote)? else {
            return pending().await;
        };
        Ok(stream)
    }

    /// Opens a connection; `None` if the server is silent.
    fn open(state: &Rc<State>, remote: SocketAddr) -> Result<Option<Self>, Error> {
        let mut stream = Self {
            state: Rc::clone(state),
            session: None,
            incoming: VecDeque::new(),
            closes: None,
        };
        let mut servers = state.network.tcp.0.borrow_mut();
        let server = servers
            .iter_mut()
            .find(|(address, _)| answers_to(*address, remote));
        match server {
            None => return Err(Error::Unreachable),
            Some((_, Server::Silent)) => return Ok(None),
            Some((_, Server::Drips { bytes, every })) => {
                let mut at = state.clock.now();
                for byte in bytes {
                    at = at.saturating_add(*every);
                    stream.incoming.push_back((at, vec![*byte]));
                }
            }
            Some((_, Server::Accepts(accept))) => {
                stream.session = Some(Closure((accept.0)()));
                stream.react(&[]);
            }
        }
        Ok(Some(stream))
    }

    fn react(&mut self, bytes: &[u8]) {
        let Some(session) = &mut self.session else {
            return;
        };
        let reaction = (session.0)(bytes);
        let before = self.incoming.back().map(|(at, _)| *at);
        let at = self.state.clock.now().saturating_add(reaction.after);
        let at = at.max(before.unwrap_or_default());
        if !reaction.send.is_empty() {
            self.incoming.push_back((at, reaction.send));
        }
        if reaction.close {
            self.closes = Some(at);
        }
    }

    fn is_closed(&self) -> bool {
        self.closes.is_some_and(|at| at <= self.state.clock.now())
    }

    pub fn write_all(&mut self, bytes: &[u8]) -> Ready<Result<(), Error>> {
        if self.is_closed() {
            return ready(Err(Error::Closed));
        }
        if !bytes.is_empty() {
            self.react(bytes);
        }
        ready(Ok(()))
    }

    pub async fn read(&mut self, max: usize) -> Result<Vec<u8>, Error> {
        loop {
            let now = self.state.clock.now();
            match (self.incoming.front_mut(), self.closes) {
                (Some((at, bytes)), _) if *at <= now => {
                    let rest = bytes.split_off(max.min(bytes.len()));
                    let read = std::mem::replace(bytes, rest);
                    if bytes.is_empty() {
                        self.incoming.pop_front();
                    }
                    return Ok(read);
                }
                (None, Some(at)) if at <= now => return Ok(Vec::new()),
                (Some((at, _)), _) => {
                    let at = *at;
                    self.state.clock.sleep_until(at).await;
                }
                (None, Some(at)) => self.state.clock.sleep_until(at).await,
                (None, None) => return pending().await,
            }
        }
    }
}
