//! Kubernetes adapter: Configurations, handlers and Instances in an API server.
//!
//! Implements the ports of `leafhost-core`. The only crate that depends on `kube`. Has no code for handlers, Wasm or the kubelet.
//!
//! Has a folder for each program: `agent`, `controller`, `scheduler`, `webhook` and `migrate`. No folder uses another; modules that two of them need
//! are outside these folders and use none of them.

mod agent;
mod answers;
mod bounded_store;
mod certificates;
pub mod client;
mod controller;
pub mod crd;
mod index;
mod instance;
mod lease;
mod manifest;
mod memory;
pub mod migrate;
mod names;
mod node_lock;
mod nodes;
mod reconciler;
mod reports;
mod requests;
mod scheduler;
mod slices;
#[cfg(test)]
mod tests {
    pub mod stub;
}
mod watch;
mod watched_object;
mod webhook;

use leafhost_core::backoff::wait as backoff;
use leafhost_core::wait::{self, until};

pub use agent::claims::KubeClaims;
pub use agent::configurations::follow as watch_configurations;
pub use agent::handlers::{self, KubeHandlers};
pub use agent::identity::{Identity, identify};
pub use agent::instances::KubeInstances;
pub use agent::node_lock::follow as lock_of;
pub use agent::report::KubeReport;
pub use agent::slices::KubeSlices;
pub use client::{ConnectError, connect, connect_as_user};
pub use controller::brokers::KubeBrokers;
pub use controller::cluster::{self, KubeCluster};
pub use scheduler::{KubeScheduling, extender, read_once};
pub use webhook::origins::Origins;
pub use webhook::{admission, serving};

/// Publishes `next` if it differs from the published value. Returns true if it does.
fn publish<T: PartialEq>(sender: &tokio::sync::watch::Sender<T>, next: impl Into<T>) -> bool {
    wait::publish(sender, next.into())
}
