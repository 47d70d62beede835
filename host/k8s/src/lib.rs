//! The Kubernetes home: Configurations, handlers and Instances in an API server.
//!
//! Implements the ports of `leafhost-core`. The only crate that knows `kube`. Knows no handler, no Wasm and no kubelet.

pub mod admission;
pub mod brokers;
pub mod client;
pub mod cluster;
pub mod configurations;
pub mod crd;
pub mod handlers;
pub mod identity;
pub mod instances;
mod lease;
mod memory;
pub mod migrate;
mod names;
mod nodes;
mod origins;
pub mod report;
pub mod serving;
#[cfg(test)]
mod stub;
mod values;
mod watch;

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::timeouts::{BACKOFF_FIRST, BACKOFF_LAST};
use rand::RngExt as _;
use tokio::time::{Instant, sleep_until};

pub use brokers::KubeBrokers;
pub use client::{connect, connect_as_user};
pub use cluster::KubeCluster;
pub use configurations::KubeConfigurations;
pub use handlers::KubeHandlers;
pub use identity::{Identity, identify};
pub use instances::KubeInstances;
pub use origins::Origins;
pub use report::KubeReport;

/// Publishes `next` if it differs from what was published before; whether it does.
fn publish<T: PartialEq>(sender: &tokio::sync::watch::Sender<Arc<T>>, next: T) -> bool {
    sender.send_if_modified(|published| {
        let differs = **published != next;
        if differs {
            *published = Arc::new(next);
        }
        differs
    })
}

/// Waits until then; for ever if there is no then.
async fn until(then: Option<Instant>) {
    match then {
        Some(then) => sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// How long to wait after that many failures in a row: from a second to five minutes, the last quarter by chance.
fn backoff(failures: u32) -> Duration {
    let doubled = 2_u32
        .checked_pow(failures.saturating_sub(1))
        .and_then(|factor| BACKOFF_FIRST.checked_mul(factor))
        .map_or(BACKOFF_LAST, |wait| wait.min(BACKOFF_LAST));
    doubled.mul_f64(rand::rng().random_range(0.75..=1.0))
}
