//! What the controller has of a cluster, and writes to it: nodes, Instances, statuses, names, and the objects of brokers.
//!
//! Knows nothing of agents but what they write, nor of the webhook and the take-over from Akri.

pub mod brokers;
pub mod classes;
pub mod cluster;
mod left_over;
mod pools;
