//! Endpoints of handlers: which of them may be registered, and how the agent connects to them. Both steps run the same checks, because a
//! path may lead elsewhere later.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use leafhost_core::text::{clean, is_unprintable};
use leafhost_net::Policy;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

use crate::folder::{self, Folder};
use crate::proto::register_discovery_handler_request::EndpointType;
use crate::timeouts::{CONNECT, KEEPALIVE};

/// Maximum length of an endpoint, in bytes: that of a path.
const MAX_TEXT: usize = 4095;
/// Maximum length of the file name that is derived from an endpoint, in bytes; the handler's name is a part of that file name, too.
const MAX_NAME: usize = 180;

pub type Connection = Either<UnixStream, TcpStream>;

/// Reason why an endpoint is not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The endpoint may not be used, with the remedy.
    #[error("{0}")]
    Refused(String),
    /// Nothing accepts connections at the endpoint.
    #[error("cannot connect to {at} ({source}); make sure that the handler runs and serves there")]
    Unreachable {
        /// Display form of the endpoint.
        at: String,
        source: io::Error,
    },
    /// The connection that was made to this endpoint at registration has ended.
    #[error(
        "the connection that was made to {0} when it registered has ended, and another pod may have that address by now: it gets no discoveryProperties; let the handler register again, for which it may have to be restarted"
    )]
    NotTheFirst(String),
}

/// Endpoint at which a handler serves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Endpoint {
    /// Path of a Unix socket, without links.
    Socket(PathBuf),
    /// Address and port in the network.
    Network(SocketAddr),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Socket(path) => path.display().fmt(f),
            Self::Network(address) => write!(f, "http://{address}"),
        }
    }
}

impl Endpoint {
    /// Parses the endpoint that a handler of `user` registers; `own` is the agent's socket in the folder.
    pub fn parse(
        kind: EndpointType,
        text: &str,
        folder: &Folder,
        own: &Path,
        user: u32,
    ) -> Result<Self, Error> {
        let invalid = |why| Error::Refused(format!("{:?} {why}", clean(text, 256)));
        if text.len() > MAX_TEXT || text.contains(is_unprintable) {
            return Err(invalid(
                "is too long, or has characters that cannot be displayed",
            ));
        }
        match kind {
            EndpointType::Network => {
                let address = text.strip_prefix("http://").unwrap_or(text);
                let address = address.strip_suffix('/').unwrap_or(address);
                let address = address.parse().map_err(|_| {
                    invalid("is not an endpoint in the network, which is http://ADDRESS:PORT with an IP address")
                })?;
                Ok(Self::Network(address))
            }
            EndpointType::Uds => {
                let path = Path::new(text);
                if !path.is_absolute() {
                    return Err(invalid("is not a socket, which has an absolute path"));
                }
                let unusable = |why| unusable(path, folder, why);
                let path = folder.within(path).map_err(unusable)?;
                if path == own {
                    return Err(invalid("is the agent's own socket; register the handler's"));
                }
                // A handler may register before it serves.
                if let Some(socket) = folder.socket_to_come(&path).map_err(unusable)? {
                    check_owner(&path, socket.owner, user)?;
                }
                let endpoint = Self::Socket(path);
                if endpoint.file_name(folder.path()).len() > MAX_NAME {
                    return Err(invalid("is too long a path for a socket"));
                }
                Ok(endpoint)
            }
        }
    }

    /// Connects to the endpoint if that is allowed. `user` is the user that registered it.
    pub async fn connect(
        &self,
        folder: &Folder,
        user: u32,
        policy: Option<&Policy>,
    ) -> Result<Connection, Error> {
        let unreachable = |source| Error::Unreachable {
            at: self.to_string(),
            source,
        };
        let connecting = async {
            match self {
                Self::Socket(path) => {
                    let socket = folder.socket(path);
                    let socket = socket.map_err(|why| unusable(path, folder, why))?;
                    check_owner(path, socket.owner, user)?;
                    let stream = socket.connect().await.map_err(unreachable)?;
                    // User of the process that listens.
                    let owner = stream.peer_cred().map_err(unreachable)?.uid();
                    check_owner(path, owner, user)?;
                    Ok(Either::Left(stream))
                }
                Self::Network(address) => {
                    self.check(policy)?;
                    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
                    // gRPC servers refuse frequent pings; TCP keepalive also detects a machine that is gone.
                    let keepalive = TcpKeepalive::new()
                        .with_time(KEEPALIVE)
                        .with_interval(KEEPALIVE);
                    SockRef::from(&stream)
                        .set_tcp_keepalive(&keepalive)
                        .map_err(unreachable)?;
                    Ok(Either::Right(stream))
                }
            }
        };
        let connected = tokio::time::timeout(CONNECT, connecting).await;
        connected.unwrap_or_else(|_| Err(unreachable(io::ErrorKind::TimedOut.into())))
    }

    /// Returns true for an address, which another pod may have later.
    pub fn is_network(&self) -> bool {
        matches!(self, Self::Network(_))
    }

    /// Checks that the grants allow a connection to the endpoint.
    pub fn check(&self, policy: Option<&Policy>) -> Result<(), Error> {
        let Self::Network(address) = self else {
            return Ok(());
        };
        let allowed = match policy {
            Some(policy) => policy.connect(*address).map_err(|denied| denied.0),
            None => Err(format!(
                "connect to {address}: the grant `network` is missing"
            )),
        };
        allowed.map_err(|denied| {
            Error::Refused(format!(
                "{denied}; `network.tcp` in the handler's grants file lists where it may serve"
            ))
        })
    }

    /// Returns the endpoint in a form that fits into a file name.
    pub fn file_name(&self, folder: &Path) -> String {
        match self {
            Self::Socket(path) => {
                let path = path.strip_prefix(folder).unwrap_or(path);
                let path = path.to_string_lossy();
                path.replace('%', "%25").replace('/', "%2F")
            }
            Self::Network(address) => address.to_string(),
        }
    }
}

fn unusable(path: &Path, folder: &Folder, why: folder::Error) -> Error {
    let at = clean(&path.to_string_lossy(), 256);
    match why {
        folder::Error::Outside | folder::Error::Link => Error::Refused(format!(
            "{at} {why}; let the handler serve in {}, and register the path without links",
            folder.path().display()
        )),
        folder::Error::Io(source) => Error::Unreachable { at, source },
    }
}

/// Checks that the socket belongs to the user that registered it.
fn check_owner(path: &Path, owner: u32, user: u32) -> Result<(), Error> {
    if owner == user {
        return Ok(());
    }
    Err(Error::Refused(format!(
        "{} is a socket of the user {owner}, and the user {user} has registered it; let the handler register its own socket",
        path.display()
    )))
}
