//! The custom resource definitions, and the types of those objects that only this crate reads and writes.
//!
//! Configurations and Instances are read into the types of `leafhost-core`; a test compares their fields with the definitions.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use leafhost_core::text;

mod discovery_handler;
mod resource_name;

pub use discovery_handler::{
    ConfigurationReport, DiscoveryHandler, DiscoveryHandlerSpec, DiscoveryHandlerStatus,
    SourceKind, SourceReport,
};
pub use resource_name::{ResourceName, ResourceNameSpec};

/// All definitions as YAML documents.
pub const YAML: &str = include_str!("../../../deploy/chart/crds/crds.yaml");

/// Returns all definitions. The error has the reason.
pub fn definitions() -> Result<Vec<CustomResourceDefinition>, String> {
    serde_saphyr::from_multiple(YAML).map_err(|error| text::chain(&error))
}

#[cfg(test)]
mod tests;
