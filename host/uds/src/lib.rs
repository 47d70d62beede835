//! Support for gRPC servers and clients on Unix sockets: binding a socket that no other process serves, removing only
//! the own one, accepting clients that send the path of the socket as host, and coding messages with small buffers.
//!
//! Knows neither the kubelet nor handlers, and depends on no other crate of this workspace.

mod accept;
pub mod authority;
mod codec;
mod connection;
mod files;
mod socket;
mod watch;

pub use accept::Accepting;
pub use codec::Codec;
pub use connection::Connection;
pub use files::{MORE_FILES, lacks_files};
pub use socket::{Error, MAX_PATH, RemovedOnDrop, SocketFile, bind, remove_stale};
pub use watch::{Events, events, names_of};
