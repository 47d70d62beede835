//! The extender of a scheduler: says which nodes have the devices that a pod wants, reserves them in their Instances and binds the pod.
//!
//! It keeps no state but what it sees, so any number of it may run, each beside a scheduler of its own: a device is reserved by a
//! compare-and-swap. Knows neither Kubernetes' client nor where it is served.

mod bind;
mod explain;
mod extender;
mod filter;
mod lock;
mod metrics;
mod offered;
mod passed;
mod release;
mod restore;
mod routes;
mod scheduler;
mod turns;
mod waiting;
mod world;

pub use explain::{Explanation, explain};
pub use extender::{Args, BindingArgs, BindingResult, FilterResult, HostPriority};
pub use metrics::Metrics;
pub use routes::{public_routes, routes};
pub use scheduler::Scheduler;
