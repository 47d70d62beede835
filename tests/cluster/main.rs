//! A real Kubernetes with real pods. If something is missing, the test names the command that installs it.
#![allow(missing_docs, reason = "a test binary")]

mod allocation;
mod containers;
mod device;
mod health;
mod kills;
mod nodes;
mod objects;
mod pods;
mod replaced;
mod restarts;
mod two_nodes;
