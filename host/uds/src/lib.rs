//! Support for gRPC servers and clients on Unix sockets: binding a socket that no other process serves, removing only
//! sockets that this process created or nobody serves, accepting clients that send the path of the socket as host, and
//! coding messages with small buffers.
//!
//! Knows neither the kubelet nor handlers, and depends on no other crate of this workspace.

mod accept;
pub mod authority;
mod codec;
mod connection;
mod socket;
mod watch;

pub use accept::Accepting;
pub use codec::Codec;
pub use connection::Connection;
pub use socket::{
    Error, MAX_PATH, MORE_FILES, RemovedOnDrop, SocketFile, bind, lacks_files, remove_stale,
};
pub use watch::{Events, events, names_of};
