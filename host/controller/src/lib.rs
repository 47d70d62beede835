//! The controller: what one process does for all nodes of a cluster.
//!
//! Agents write only what is of their own node. What a node left behind that is gone, the controller releases; what agents report of a
//! Configuration, it shows on the Configuration. It makes the brokers that Configurations ask for, and reserves
//! their names. Two controllers do no harm: each write names what it assumes.

mod attempts;
pub mod brokers;
mod error;
mod events;
#[cfg(test)]
mod fakes;
mod finalizers;
mod fold;
mod metrics;
mod names;
mod pace;
mod release;
mod released;
mod releasing;
mod statuses;
mod task;
mod turns;
mod writes;

pub use error::Error;
pub use metrics::Metrics;
pub use task::Controller;
