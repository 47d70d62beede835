//! Brokers: the pods, jobs and services that Configurations ask for.
//!
//! ```text
//!  Configurations ─► template ─┐
//!  Instances, nodes ───────────┼─► plan ─► writes ─► pods, jobs, services
//!  pods, jobs, services ───────┘     ▲
//!                                    └ attempts, turns, restarts: what is not written at once
//! ```
//!
//! Owner references let the cluster delete the objects of an Instance or Configuration that is gone, so this module handles existing owners
//! only.

mod body;
mod failed;
mod plan;
mod restarts;
mod review;
mod task;
mod template;

pub use plan::{Plan, World, plan};
pub use restarts::Restarts;
pub use review::{BrokerWrite, ReferencedOwner};
pub use task::run;

#[cfg(test)]
mod tests {
    pub mod fixture;
}
