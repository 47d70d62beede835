//! Test harness: starts the real binaries in their own folder, waits for conditions, stops what it started.
//!
//! Knows only the agent's external interfaces: command line, files, status document.

pub mod accounts;
pub mod agent;
pub mod cluster;
pub mod contest;
pub mod kubelet;
pub mod lan;
pub mod mounts;
pub mod peer;
pub mod program;
pub mod random;
pub mod requirement;
pub mod scheduling;
pub mod slot_history;
pub mod stand_in_node;
pub mod trace;
pub mod wait;
pub mod write_proxy;
pub mod zram;
