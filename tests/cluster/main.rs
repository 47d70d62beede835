//! A real Kubernetes with real pods. What is missing for it is named with the command that brings it.
#![allow(missing_docs, reason = "a test binary")]

mod allocation;
mod containers;
mod device;
mod health;
mod kills;
mod nodes;
mod pods;
mod replaced;
mod restarts;
mod two_nodes;
