//! Generated code of the kubelet's protocols, both sides of each.
#![allow(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

/// Device-plugin API, v1beta1.
pub mod device_plugin {
    tonic::include_proto!("deviceplugin/v1beta1");
}

/// PodResources API, v1.
pub mod pod_resources {
    tonic::include_proto!("podresources/v1");
}

/// Registration of plugins by their sockets, v1.
pub mod plugin_registration {
    tonic::include_proto!("pluginregistration/pluginregistration");
}

/// Dynamic Resource Allocation, v1.
pub mod dra {
    tonic::include_proto!("dra/k8s.io.kubelet.pkg.apis.dra.v1");
}

/// Health of the devices of claims, v1.
pub mod dra_health {
    tonic::include_proto!("dra_health/v1");
}
