//! The controller's side of a cluster: nodes, Instances, statuses, names, and the objects of brokers.
//!
//! Knows agents only by the objects they write, and nothing of the webhook and the migration from Akri.

pub mod brokers;
pub mod classes;
pub mod cluster;
mod left_over;
mod pools;
