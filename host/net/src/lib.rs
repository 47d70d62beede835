//! What a discovery handler may reach on the network, and how.
//!
//! ```text
//! kernel ─► interfaces ─┐
//! grants file ─► grants ─┴─► policy: may this address be reached? ─► sockets, requests, groups
//! ```
//!
//! Knows neither guests nor files; every address goes through [`Policy`] right before it is used.

pub mod grants;
pub mod http;
mod interfaces;
mod multicast;
mod policy;

pub use interfaces::{Interface, Interfaces, Network, NetworkError};
pub use multicast::{Datagram, Group, Listener, Received};
pub use policy::{Denied, Policy};
