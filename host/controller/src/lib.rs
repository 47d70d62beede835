//! The controller: what one process does for all nodes of a cluster.
//!
//! Agents write only what is of their own node. What a node left behind that is gone, the controller releases. Two controllers do no harm:
//! each write names what it assumes.

mod release;
mod task;

pub use task::{Controller, Error};
