//! Kills at every write, and long runs with many handler swaps.
#![allow(missing_docs, reason = "a test binary")]

mod disk_state;
mod handler_swaps;
mod kills;
mod scenarios;
