//! The harness: starts the real binaries in a folder of their own, waits for conditions, stops what it started.
//!
//! Knows the agent only from outside, as a user does: its command line, its files, its status document.

pub mod agent;
pub mod cluster;
pub mod kubelet;
pub mod lan;
pub mod mounts;
pub mod peer;
pub mod program;
pub mod random;
pub mod requirement;
pub mod trace;
pub mod wait;
pub mod zram;
