//! The Kubernetes home: Configurations, handlers and Instances in an API server.
//!
//! Implements the ports of `leafhost-core`. The only crate that knows `kube`. Knows no handler, no Wasm and no kubelet.

pub mod crd;
pub mod instances;

pub use instances::KubeInstances;
