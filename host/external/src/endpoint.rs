//! Where a handler serves: which endpoints may be registered, and how they are connected to. Both times the same is checked, since
//! what a path leads to may change.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use leafhost_core::text::{clean, is_unprintable};
use leafhost_net::Policy;
use serde::{Deserialize, Serialize};
use socket2::{SockRef, TcpKeepalive};
use tokio::net::{TcpStream, UnixStream};
use tokio_util::either::Either;

use crate::proto::register_discovery_handler_request::EndpointType;
use crate::timeouts::{CONNECT, KEEPALIVE};

/// The longest endpoint, in bytes: that of a path.
const MAX_TEXT: usize = 4095;
/// The longest name that is made of one, in bytes: with a handler's name it is the name of a file.
const MAX_NAME: usize = 180;

/// A connection to a handler.
pub type Connection = Either<UnixStream, TcpStream>;

/// Why an endpoint is not used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is no endpoint of its type.
    #[error("{text:?} {why}")]
    Invalid {
        /// The endpoint.
        text: String,
        /// What is wrong, and what would be right.
        why: &'static str,
    },
    /// There is nothing that can be connected to.
    #[error("cannot connect to {at} ({source}); see that the handler runs and serves there")]
    Unreachable {
        /// The endpoint.
        at: String,
        /// Why.
        source: io::Error,
    },
    /// It leads out of the folder.
    #[error("{at} is not in {}; let the handler serve in that folder", folder.display())]
    Outside {
        /// What it leads to.
        at: String,
        /// The folder of external handlers.
        folder: PathBuf,
    },
    /// It is the socket of another user.
    #[error(
        "{at} is a socket of the user {owner}, and the user {user} has registered it; let the handler register its own socket"
    )]
    OtherUser {
        /// The socket.
        at: String,
        /// Who serves it.
        owner: u32,
        /// Who has registered it.
        user: u32,
    },
    /// The grants do not have it.
    #[error("{denied}; `network.tcp` in the handler's grants file lists where it may serve")]
    NotGranted {
        /// What is denied.
        denied: String,
    },
}

/// Where a handler serves.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Endpoint {
    /// A socket; the path has no links.
    Socket(PathBuf),
    /// An address.
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
    /// The endpoint that a handler of `user` registers. `folder` is that of external handlers, without links, `own` the agent's socket
    /// in it. Blocks.
    pub fn parse(
        kind: EndpointType,
        text: &str,
        folder: &Path,
        own: &Path,
        user: u32,
    ) -> Result<Self, Error> {
        let invalid = |why| Error::Invalid {
            text: clean(text, 256),
            why,
        };
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
                    invalid("is no endpoint in the network, which is http://ADDRESS:PORT with an IP address")
                })?;
                Ok(Self::Network(address))
            }
            EndpointType::Uds => {
                let path = Path::new(text);
                if !path.is_absolute() {
                    return Err(invalid("is no socket, which has an absolute path"));
                }
                let (path, owner) = look(path, folder)?;
                if path == own {
                    return Err(invalid("is the agent's own socket; register the handler's"));
                }
                if let Some(owner) = owner.filter(|owner| *owner != user) {
                    let at = path.display().to_string();
                    return Err(Error::OtherUser { at, owner, user });
                }
                let endpoint = Self::Socket(path);
                if endpoint.file_name(folder).len() > MAX_NAME {
                    return Err(invalid("is too long a path for a socket"));
                }
                Ok(endpoint)
            }
        }
    }

    /// Connects, if it may be. `user` has registered it.
    pub async fn connect(
        &self,
        folder: &Path,
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
                    let (path, folder) = (path.clone(), folder.to_owned());
                    let looked = tokio::task::spawn_blocking(move || look(&path, &folder)).await;
                    let (path, _) =
                        looked.map_err(|error| unreachable(io::Error::other(error)))??;
                    let stream = UnixStream::connect(&path).await.map_err(unreachable)?;
                    // Of the process that listens.
                    let owner = stream.peer_cred().map_err(unreachable)?.uid();
                    if owner != user {
                        return Err(Error::OtherUser {
                            at: self.to_string(),
                            owner,
                            user,
                        });
                    }
                    Ok(Either::Left(stream))
                }
                Self::Network(address) => {
                    check(*address, policy)?;
                    let stream = TcpStream::connect(address).await.map_err(unreachable)?;
                    // gRPC servers refuse frequent pings; the kernel notices a machine that is gone, too.
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

    /// Whether its grants let it be connected to.
    pub fn check(&self, policy: Option<&Policy>) -> Result<(), Error> {
        match self {
            Self::Socket(_) => Ok(()),
            Self::Network(address) => check(*address, policy),
        }
    }

    /// The endpoint as a part of a file's name.
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

fn check(address: SocketAddr, policy: Option<&Policy>) -> Result<(), Error> {
    let denied = match policy {
        Some(policy) => policy.connect(address).err().map(|denied| denied.0),
        None => Some(format!(
            "connect to {address}: the grant `network` is missing"
        )),
    };
    denied.map_or(Ok(()), |denied| Err(Error::NotGranted { denied }))
}

/// What a path leads to, if that is a socket in the folder or nothing yet; and whose it is.
fn look(path: &Path, folder: &Path) -> Result<(PathBuf, Option<u32>), Error> {
    let unreachable = |source| Error::Unreachable {
        at: clean(&path.to_string_lossy(), 256),
        source,
    };
    let found = match std::fs::canonicalize(path) {
        // A handler may register before it serves.
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let (Some(above), Some(name)) = (path.parent(), path.file_name()) else {
                return Err(unreachable(error));
            };
            std::fs::canonicalize(above)
                .map_err(unreachable)?
                .join(name)
        }
        found => found.map_err(unreachable)?,
    };
    if !found.starts_with(folder) {
        return Err(Error::Outside {
            at: clean(&found.to_string_lossy(), 256),
            folder: folder.to_owned(),
        });
    }
    match std::fs::symlink_metadata(&found) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok((found, None)),
        Err(error) => Err(unreachable(error)),
        Ok(is) if is.file_type().is_socket() => Ok((found, Some(is.uid()))),
        Ok(_) => Err(unreachable(io::Error::other("it is no socket"))),
    }
}
