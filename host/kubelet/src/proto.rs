//! Generated code of the kubelet's protocols, both sides of each.
#![allow(
    missing_docs,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

/// Device-plugin API, v1beta1.
pub mod device_plugin {
    include!(concat!(env!("OUT_DIR"), "/deviceplugin/v1beta1.rs"));
}

/// PodResources API, v1.
pub mod pod_resources {
    include!(concat!(env!("OUT_DIR"), "/podresources/v1.rs"));
}

/// Registration of plugins by their sockets, v1.
pub mod plugin_registration {
    include!(concat!(
        env!("OUT_DIR"),
        "/pluginregistration/pluginregistration.rs"
    ));
}

/// Dynamic Resource Allocation, v1.
pub mod dra {
    include!(concat!(
        env!("OUT_DIR"),
        "/dra/k8s.io.kubelet.pkg.apis.dra.v1.rs"
    ));
}

/// Health of the devices of claims, v1.
pub mod dra_health {
    include!(concat!(env!("OUT_DIR"), "/dra_health/v1.rs"));
}
