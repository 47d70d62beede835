//! Scheduler extender: finds the nodes that have the devices a pod wants, reserves the devices in their Instances and binds the pod.
//!
//! The extender keeps only what it observes, so any number of replicas may run, each for its own scheduler: a device is reserved by a
//! compare-and-swap. The crate knows neither the Kubernetes client nor the server that serves it.

mod bind;
mod explain;
mod extender;
mod filter;
mod filtered_pods;
mod lock;
mod metrics;
mod node_queues;
mod offered;
mod release;
mod restore;
mod routes;
mod scheduler;
mod waiting;
mod world;

pub use explain::{Explanation, explain};
pub use extender::{Args, BindingResult, FilterResult, HostPriority};
pub use metrics::Metrics;
pub use routes::{public_routes, routes};
pub use scheduler::Scheduler;
