//! The controller: the part that one process does for all nodes of a cluster.
//!
//! Agents write only about their own node. The controller removes the slots and entries of nodes that are gone, and shows on each
//! Configuration the reports of agents about it. It creates the brokers that Configurations ask for and reserves the names of
//! Configurations. If enabled, it evicts pods whose device is gone, and labels nodes. Two controllers at once do no harm, because each
//! write carries the state that it assumes.

mod attempts;
pub mod brokers;
mod events;
mod evictions;
mod finalizers;
mod fold;
mod metrics;
mod names;
mod node_labels;
mod pass_schedule;
mod release;
mod releasing;
mod round_robin;
mod statuses;
mod task;
#[cfg(test)]
mod tests {
    pub mod fakes;
}
mod writes;

pub use metrics::Metrics;
pub use task::run;
