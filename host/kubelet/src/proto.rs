//! The kubelet's protocols as generated, both sides of each.
#![allow(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

/// The device-plugin API, v1beta1.
pub mod device_plugin {
    tonic::include_proto!("v1beta1");
}

/// The PodResources API, v1.
pub mod pod_resources {
    tonic::include_proto!("v1");
}
