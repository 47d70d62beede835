//! The Kubernetes home: Configurations, handlers and Instances in an API server.
//!
//! Implements the ports of `leafhost-core`. The only crate that knows `kube`. Knows no handler, no Wasm and no kubelet.

pub mod client;
pub mod configurations;
pub mod crd;
pub mod identity;
pub mod instances;
#[cfg(test)]
mod stub;
mod values;
mod watch;

use std::sync::Arc;

pub use client::connect;
pub use configurations::KubeConfigurations;
pub use identity::{Identity, identify};
pub use instances::KubeInstances;

/// Publishes `next` if it differs from what was published before.
fn publish<T: PartialEq>(sender: &tokio::sync::watch::Sender<Arc<T>>, next: T) {
    sender.send_if_modified(|published| {
        let differs = **published != next;
        if differs {
            *published = Arc::new(next);
        }
        differs
    });
}
