//! The agent's side of a cluster: Configurations with their values, handlers, Instances, claims, slices, its own identity, and the lock and
//! the report of its node.
//!
//! Knows nothing of the controller, the webhook and the migration from Akri.

pub mod claims;
pub mod configurations;
pub mod handlers;
pub mod identity;
pub mod instances;
pub mod node_lock;
pub mod report;
pub mod slices;
mod values;
