//! The agent with a kubelet that enters states on demand that a real one cannot be made to enter: real binary, real handlers, real sockets.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::indexing_slicing,
    reason = "a test binary"
)]

mod allocating;
mod bad_input;
mod bad_requests;
mod kills;
mod levels;
mod node;
mod races;
mod records;
mod registering;
mod restarts;
mod unwritable;
mod vanishing;
