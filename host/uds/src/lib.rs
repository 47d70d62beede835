//! What servers and clients of gRPC on Unix sockets need: a socket is bound where no other process serves it and removed only by who
//! made it, clients are let in that name the path of the socket as the host they call, and messages are coded with small buffers.
//!
//! Knows neither the kubelet nor handlers, and depends on no other crate of this workspace.

mod accept;
pub mod authority;
mod codec;
mod files;
mod socket;
mod watch;

pub use accept::Accepting;
pub use codec::Codec;
pub use files::{MORE_FILES, lacks_files};
pub use socket::{Error, MAX_PATH, RemovedOnDrop, SocketFile, bind, remove_stale};
pub use watch::{Events, events, names_of};
