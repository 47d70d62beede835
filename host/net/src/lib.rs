//! Network access of discovery handlers: the policy, and the operations under it.
//!
//! ```text
//! kernel ─► interfaces ─┐
//! grants file ─► grants ─┴─► policy: may this address be reached? ─► sockets, requests, groups
//! ```
//!
//! Does not know guests or files; every address passes [`Policy`] right before it is used.

pub mod grants;
pub mod http;
mod interfaces;
mod multicast;
mod policy;

pub use interfaces::{Interface, Interfaces, Network, NetworkError};
pub use multicast::{Datagram, Group, Listener, Received};
pub use policy::{Denied, Policy};
