//! One conversation with one server, each with deadlines of its own. Does not know what the answers are for.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use leafhost_sdk::{Host, net, tcp};
use opcua_types::StatusCode;

use crate::framing::{self, Expect, Kind, Reader};
use crate::messages::{self, Application, Channel, Endpoint, List, Record};
use crate::url::{self, Url};

/// How long a server has to take the connection and to answer the hello.
pub const HELLO_LIMIT: Duration = Duration::from_secs(3);
/// How long a name has to be looked up.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(2);
/// The lead of one address before the next is tried too (RFC 8305, 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// How many conversations there are at a time; each may try two addresses, and a call has 128 sockets.
pub const AT_ONCE: usize = 60;
/// How much is read at a time.
const READ: usize = 16 * 1024;
/// What every server may send.
const FREE: usize = 64 * 1024;
/// What all servers of a call may send beyond that.
const SHARED: usize = 16 << 20;
/// After how many connections no conversation begins: each of those that have begun may still need four.
const CONNECTIONS: usize = net::CONNECTIONS - AT_ONCE * 4;

/// What a server answers whose answer would be larger than the hello allowed.
const BOUNDS: [StatusCode; 3] = [
    StatusCode::BadEncodingLimitsExceeded,
    StatusCode::BadResponseTooLarge,
    StatusCode::BadTcpMessageTooLarge,
];

/// What a server answers that takes no channel without security (OPC 10000-6, 6.7.6 lets it say nothing more exact than the last).
const SECURITY: [StatusCode; 4] = [
    StatusCode::BadSecurityPolicyRejected,
    StatusCode::BadSecurityModeRejected,
    StatusCode::BadSecurityModeInsufficient,
    StatusCode::BadSecurityChecksFailed,
];

/// Why a conversation ended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The name has no address.
    #[error("cannot find the server's address")]
    LookUp(#[source] net::Error),
    /// Nobody takes the connection.
    #[error("cannot connect")]
    Connect(#[source] net::Error),
    /// Somebody takes the connection, or nobody refuses it, and says nothing.
    #[error("no hello within {} s", HELLO_LIMIT.as_secs())]
    Silent,
    /// The answers take too long.
    #[error("the answers took longer than {} s", .0.as_secs())]
    Slow(Duration),
    /// The connection broke.
    #[error("lost the connection")]
    Lost(#[source] net::Error),
    /// The bytes are no OPC UA, or say no.
    #[error(transparent)]
    Framing(#[from] framing::Error),
    /// The answer is none, or says no.
    #[error(transparent)]
    Messages(#[from] messages::Error),
    /// Too much is sent by all servers together.
    #[error("the servers of this call send more than {} MiB", SHARED >> 20)]
    Flooded,
}

impl Error {
    /// Whether it is for a bound of ours, be it that the server keeps to it by saying nothing: what it knows may be there all
    /// the same.
    pub fn is_bound(&self) -> bool {
        let ours = matches!(
            self,
            Self::Flooded | Self::Framing(framing::Error::Long | framing::Error::Endless)
        );
        ours || self.status().is_some_and(|status| BOUNDS.contains(&status))
    }

    /// Whether that, in answer to the request for a channel without security, is a refusal. A server that had such channels
    /// before (`told`) has to say so: else it may only be busy or about to end.
    pub fn is_refusal(&self, told: bool) -> bool {
        match self.status() {
            Some(status) => SECURITY.contains(&status) || !told && !BOUNDS.contains(&status),
            None => !told && matches!(self, Self::Lost(_)),
        }
    }

    /// What the server says of it.
    fn status(&self) -> Option<StatusCode> {
        match self {
            Self::Framing(framing::Error::Aborted(reason) | framing::Error::Refused(reason)) => {
                Some(reason.status)
            }
            Self::Messages(messages::Error::Fault { status }) => Some(*status),
            _ => None,
        }
    }

    /// With its cause. The causes have none.
    pub fn in_full(&self) -> String {
        match self {
            Self::LookUp(cause) | Self::Connect(cause) | Self::Lost(cause) => {
                format!("{self}: {cause}")
            }
            _ => self.to_string(),
        }
    }
}

/// What is left to the servers of a call: bytes beyond the first 64 KiB of each, as memory and computing time are those of the
/// call, and connections.
#[derive(Debug)]
pub struct Allowance {
    bytes: Cell<usize>,
    connections: Cell<usize>,
}

impl Default for Allowance {
    fn default() -> Self {
        Self {
            bytes: Cell::new(SHARED),
            connections: Cell::new(CONNECTIONS),
        }
    }
}

impl Allowance {
    fn take(&self, bytes: usize) -> Result<(), Error> {
        let left = self.bytes.get().checked_sub(bytes).ok_or(Error::Flooded)?;
        self.bytes.set(left);
        Ok(())
    }

    /// Whether new conversations may begin; those that have begun may make the connections they need.
    pub fn has_connections(&self) -> bool {
        self.connections.get() > 0
    }

    fn connects(&self) {
        self.connections
            .set(self.connections.get().saturating_sub(1));
    }
}

/// The addresses of a host, IPv4 first: servers that listen on IPv6 as well are rare.
pub async fn look_up(host: &Host, name: &str) -> Result<Vec<IpAddr>, net::Error> {
    let found = host
        .within(LOOK_UP_LIMIT, host.resolve(name))
        .await
        .unwrap_or(Err(net::Error::TimedOut))?;
    let (mut addresses, others): (Vec<_>, Vec<_>) = found.into_iter().partition(IpAddr::is_ipv4);
    addresses.extend(others);
    Ok(addresses)
}

/// The addresses of a URL's host.
pub async fn addresses(host: &Host, url: &Url) -> Result<Vec<IpAddr>, net::Error> {
    match url.host() {
        url::Host::Address(address) => Ok(vec![*address]),
        // By definition (RFC 6761, 6.3), whatever name servers say.
        url::Host::Name(_) if url.is_loopback() => Ok(vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ]),
        url::Host::Name(name) if url.host().can_be_looked_up() => look_up(host, name).await,
        url::Host::Name(name) => Err(net::Error::Name(format!(
            "{name}: no name has these characters"
        ))),
    }
}

/// A connection to the first of two addresses that takes it.
async fn connect(
    host: &Host,
    addresses: &[IpAddr],
    port: u16,
    allowance: &Allowance,
) -> Result<tcp::Stream, Error> {
    let connect = |address: &IpAddr| {
        allowance.connects();
        host.connect(SocketAddr::new(*address, port))
    };
    let connected = match addresses {
        [] => Err(net::Error::Unreachable),
        [only] => connect(only).await,
        [first, second, ..] => {
            let first = pin!(connect(first));
            let second = pin!(async {
                host.sleep(HEAD_START).await;
                connect(second).await
            });
            match select(first, second).await {
                Either::Left((Err(_), second)) => second.await,
                Either::Right((Err(_), first)) => first.await,
                Either::Left((connected, _)) | Either::Right((connected, _)) => connected,
            }
        }
    };
    connected.map_err(Error::Connect)
}

/// Whether somebody takes connections there: all that can be asked where another protocol is spoken.
pub async fn takes_connections(
    host: &Host,
    addresses: &[IpAddr],
    port: u16,
    allowance: &Allowance,
) -> Result<(), Error> {
    host.within(HELLO_LIMIT, connect(host, addresses, port, allowance))
        .await
        .unwrap_or(Err(Error::Connect(net::Error::TimedOut)))
        .map(drop)
}

/// A conversation after the hello.
#[derive(Debug)]
pub struct Conversation<'a> {
    stream: tcp::Stream,
    reader: Reader,
    received: usize,
    allowance: &'a Allowance,
    sequence: u32,
    channel: Channel,
}

impl<'a> Conversation<'a> {
    /// Connects and exchanges hellos; `url` is what the server is told it was asked by.
    pub async fn begin(
        host: &Host,
        addresses: &[IpAddr],
        url: &Url,
        allowance: &'a Allowance,
    ) -> Result<Self, Error> {
        let hello = async {
            let mut conversation = Self {
                stream: connect(host, addresses, url.port(), allowance).await?,
                reader: Reader::default(),
                received: 0,
                allowance,
                sequence: 0,
                channel: Channel { id: 0, token: 0 },
            };
            let hello = framing::hello(url.as_str());
            conversation.exchange(&hello, Expect::Acknowledge).await?;
            Ok(conversation)
        };
        host.within(HELLO_LIMIT, hello)
            .await
            .unwrap_or(Err(Error::Silent))
    }

    /// Opens a secure channel without security, which every server must have for discovery (OPC 10000-4, 5.5.1).
    pub async fn open(&mut self) -> Result<(), Error> {
        let number = self.next_number();
        let request = framing::open(number, &messages::open_secure_channel(number));
        let answer = self.exchange(&request, Expect::Opened(number)).await?;
        self.channel = messages::channel(&answer)?;
        Ok(())
    }

    /// The applications it knows.
    pub async fn servers(&mut self, url: &Url) -> Result<List<Application>, Error> {
        let answer = self
            .ask(|handle| messages::find_servers(handle, url.as_str()))
            .await?;
        Ok(messages::servers(&answer)?)
    }

    /// The servers it knows from the network.
    pub async fn records(&mut self) -> Result<List<Record>, Error> {
        let answer = self.ask(messages::find_servers_on_network).await?;
        Ok(messages::records(&answer)?)
    }

    /// Its own endpoints. Servers may tell only those that begin with the URL they are asked with: where another one leads to
    /// them, as behind a mapped port, none has it, and they are asked with the one they list.
    pub async fn endpoints(
        &mut self,
        url: &Url,
        listed: Option<&str>,
    ) -> Result<Vec<Endpoint>, Error> {
        let listed = listed.filter(|listed| *listed != url.as_str());
        for by in [Some(url.as_str()), listed].into_iter().flatten() {
            let answer = self
                .ask(|handle| messages::get_endpoints(handle, by))
                .await?;
            let found = messages::endpoints(&answer)?;
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Takes leave. Nothing comes back.
    pub async fn close(mut self) {
        let number = self.next_number();
        let body = messages::close_secure_channel(number);
        let Channel { id, token } = self.channel;
        let farewell = framing::request(Kind::Close, id, token, number, &body);
        // The connection ends in any case.
        let _ = self.stream.write_all(&farewell).await;
    }

    async fn ask(&mut self, request: impl FnOnce(u32) -> Vec<u8>) -> Result<Vec<u8>, Error> {
        let number = self.next_number();
        let Channel { id, token } = self.channel;
        let bytes = framing::request(Kind::Message, id, token, number, &request(number));
        let due = Expect::Answer {
            channel: id,
            request: number,
        };
        self.exchange(&bytes, due).await
    }

    /// Requests are numbered as their chunks are: each is one.
    fn next_number(&mut self) -> u32 {
        self.sequence = self.sequence.wrapping_add(1);
        self.sequence
    }

    async fn exchange(&mut self, request: &[u8], due: Expect) -> Result<Vec<u8>, Error> {
        self.stream.write_all(request).await.map_err(Error::Lost)?;
        loop {
            if let Some(answer) = self.reader.next(due)? {
                return Ok(answer);
            }
            let bytes = self.stream.read(READ).await.map_err(Error::Lost)?;
            if bytes.is_empty() {
                return Err(Error::Lost(net::Error::Closed));
            }
            let before = self.received.max(FREE);
            self.received = self.received.saturating_add(bytes.len());
            self.allowance.take(self.received.saturating_sub(before))?;
            self.reader.push(&bytes);
        }
    }
}
