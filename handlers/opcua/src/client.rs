//! Connection to one server, with time limits. It does not interpret the answers.

use std::cell::Cell;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::pin::pin;
use std::time::Duration;

use futures_util::future::{Either, select};
use leafhost_sdk::{Host, net, tcp};

use crate::framing::{self, Expect, Kind, Reader};
use crate::messages::{self, Application, Channel, Endpoint, List, Record};
use crate::status::Status;
use crate::url::{self, Url};

/// Time limit for the connection and the answer to Hello.
pub const HELLO_LIMIT: Duration = Duration::from_secs(3);
/// Time limit for a name lookup.
const LOOK_UP_LIMIT: Duration = Duration::from_secs(2);
/// Delay before the second address of a host is tried as well (RFC 8305, 5).
const HEAD_START: Duration = Duration::from_millis(250);
/// Number of conversations that run concurrently: each may try two addresses, and a call has 128 sockets.
pub const AT_ONCE: usize = 60;
/// Number of bytes per read.
const READ: usize = 16 * 1024;
/// Number of bytes that each server may send before they count towards [`SHARED`].
const FREE: usize = 64 * 1024;
/// Number of further bytes that all servers of a call together may send.
const SHARED: usize = 16 << 20;
/// Number of connections after which no conversation starts: each running one may still need four.
const CONNECTIONS: usize = net::CONNECTIONS - AT_ONCE * 4;

/// Status codes of a server whose answer would exceed the limits given in Hello.
const BOUNDS: [Status; 3] = [
    Status::ENCODING_LIMITS_EXCEEDED,
    Status::RESPONSE_TOO_LARGE,
    Status::TCP_MESSAGE_TOO_LARGE,
];

/// Status codes of a server that refuses a channel without security. OPC 10000-6, 6.7.6 permits the unspecific last one.
const SECURITY: [Status; 4] = [
    Status::SECURITY_POLICY_REJECTED,
    Status::SECURITY_MODE_REJECTED,
    Status::SECURITY_MODE_INSUFFICIENT,
    Status::SECURITY_CHECKS_FAILED,
];

/// Error that ended a conversation.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Failure of the name lookup.
    #[error("cannot find the server's address")]
    LookUp(#[source] net::Error),
    /// Failure of the connection.
    #[error("cannot connect")]
    Connect(#[source] net::Error),
    /// No answer to Hello in time.
    #[error("no hello within {} s", HELLO_LIMIT.as_secs())]
    Silent,
    /// Conversation over its time limit.
    #[error("the answers took longer than {} s", .0.as_secs())]
    Slow(Duration),
    /// Loss of the connection.
    #[error("lost the connection")]
    Lost(#[source] net::Error),
    /// Bytes that are not OPC UA, or an error message.
    #[error(transparent)]
    Framing(#[from] framing::Error),
    /// Answer that cannot be used, or a fault.
    #[error(transparent)]
    Messages(#[from] messages::Error),
    /// Too many bytes from all servers together.
    #[error("the servers of this call send more than {} MiB", SHARED >> 20)]
    Flooded,
}

impl Error {
    /// Returns true if one of our limits caused the error, directly or because the server respects it. The server may have
    /// more to report.
    pub fn is_bound(&self) -> bool {
        let ours = matches!(
            self,
            Self::Flooded | Self::Framing(framing::Error::Long | framing::Error::Endless)
        );
        ours || self.status().is_some_and(|status| BOUNDS.contains(&status))
    }

    /// Returns true if this answer to the request for a channel without security is a refusal. A server that had such a
    /// channel before (`had_channel`) must say so explicitly: otherwise it may just be busy or stopping.
    pub fn is_refusal(&self, had_channel: bool) -> bool {
        match self.status() {
            Some(status) => SECURITY.contains(&status) || !had_channel && !BOUNDS.contains(&status),
            None => !had_channel && matches!(self, Self::Lost(_)),
        }
    }

    /// Returns the server's status code, if there is one.
    fn status(&self) -> Option<Status> {
        match self {
            Self::Framing(framing::Error::Aborted(reason) | framing::Error::Refused(reason)) => {
                Some(reason.status)
            }
            Self::Messages(messages::Error::Fault { status }) => Some(*status),
            _ => None,
        }
    }

    /// Formats the error with its cause. Causes have no cause themselves.
    pub fn in_full(&self) -> String {
        match self {
            Self::LookUp(cause) | Self::Connect(cause) | Self::Lost(cause) => {
                format!("{self}: {cause}")
            }
            _ => self.to_string(),
        }
    }
}

/// Bytes and connections that the servers of a call may still use. Bytes count beyond the first 64 KiB of each server, since
/// memory and CPU time are shared.
#[derive(Debug)]
pub struct Budget {
    bytes: Cell<usize>,
    connections: Cell<usize>,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            bytes: Cell::new(SHARED),
            connections: Cell::new(CONNECTIONS),
        }
    }
}

impl Budget {
    fn take(&self, bytes: usize) -> Result<(), Error> {
        let left = self.bytes.get().checked_sub(bytes).ok_or(Error::Flooded)?;
        self.bytes.set(left);
        Ok(())
    }

    /// Returns true if new conversations may start; running ones may open the connections they need.
    pub fn has_connections(&self) -> bool {
        self.connections.get() > 0
    }

    fn count_connection(&self) {
        self.connections
            .set(self.connections.get().saturating_sub(1));
    }
}

/// Looks up the addresses of a host, IPv4 first, because few servers also listen on IPv6.
pub async fn look_up(host: &Host, name: &str) -> Result<Vec<IpAddr>, net::Error> {
    let found = host
        .within(LOOK_UP_LIMIT, host.resolve(name))
        .await
        .unwrap_or(Err(net::Error::TimedOut))?;
    let (mut addresses, others): (Vec<_>, Vec<_>) = found.into_iter().partition(IpAddr::is_ipv4);
    addresses.extend(others);
    Ok(addresses)
}

/// Returns the addresses of a URL's host.
pub async fn addresses(host: &Host, url: &Url) -> Result<Vec<IpAddr>, net::Error> {
    match url.host() {
        url::Host::Address(address) => Ok(vec![*address]),
        // RFC 6761, 6.3 defines this, regardless of name servers.
        url::Host::Name(_) if url.is_loopback() => Ok(vec![
            IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(Ipv6Addr::LOCALHOST),
        ]),
        url::Host::Name(name) if url.host().can_be_looked_up() => look_up(host, name).await,
        url::Host::Name(name) => Err(net::Error::Name(format!("{name}: not a valid host name"))),
    }
}

/// Connects to whichever of the first two addresses accepts first.
async fn connect(
    host: &Host,
    addresses: &[IpAddr],
    port: u16,
    budget: &Budget,
) -> Result<tcp::Stream, Error> {
    let connect = |address: &IpAddr| {
        budget.count_connection();
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

/// Checks that a process accepts connections; no more can be checked for another protocol.
pub async fn accepts_connections(
    host: &Host,
    addresses: &[IpAddr],
    port: u16,
    budget: &Budget,
) -> Result<(), Error> {
    host.within(HELLO_LIMIT, connect(host, addresses, port, budget))
        .await
        .unwrap_or(Err(Error::Connect(net::Error::TimedOut)))
        .map(drop)
}

/// Conversation after the Hello.
#[derive(Debug)]
pub struct Conversation<'a> {
    stream: tcp::Stream,
    reader: Reader,
    received: usize,
    budget: &'a Budget,
    sequence: u32,
    channel: Channel,
}

impl<'a> Conversation<'a> {
    /// Connects and exchanges Hello and Acknowledge; `url` is sent as the endpoint URL.
    pub async fn begin(
        host: &Host,
        addresses: &[IpAddr],
        url: &Url,
        budget: &'a Budget,
    ) -> Result<Self, Error> {
        let hello = async {
            let mut conversation = Self {
                stream: connect(host, addresses, url.port(), budget).await?,
                reader: Reader::default(),
                received: 0,
                budget,
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

    /// Calls `FindServers` with a URL, which may be empty.
    pub async fn servers(&mut self, url: &str) -> Result<List<Application>, Error> {
        let answer = self
            .ask(|handle| messages::find_servers(handle, url))
            .await?;
        Ok(messages::servers(&answer)?)
    }

    /// Calls `FindServersOnNetwork`.
    pub async fn records(&mut self) -> Result<List<Record>, Error> {
        let answer = self.ask(messages::find_servers_on_network).await?;
        Ok(messages::records(&answer)?)
    }

    /// Calls `GetEndpoints`. Some servers list only endpoints that begin with the URL in the request. Behind a mapped
    /// port none does, so an empty answer is followed by a request with the URL the server lists.
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

    /// Closes the channel; there is no answer.
    pub async fn close(mut self) {
        let number = self.next_number();
        let body = messages::close_secure_channel(number);
        let Channel { id, token } = self.channel;
        let farewell = framing::request(Kind::Close, id, token, number, &body);
        // The connection closes in any case.
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

    /// Returns the next sequence number. A request is one chunk, so it is also the request id.
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
            self.budget.take(self.received.saturating_sub(before))?;
            self.reader.push(&bytes);
        }
    }
}
