//! What is left when the agent is killed at a write, when what it needs is taken away, and after it has run for long.
#![allow(missing_docs, reason = "a test binary")]

mod disk_state;
mod handler_swaps;
mod kills;
mod scenarios;
