//! The custom resource definitions.
//!
//! These types exist for their schemas: the API server enforces them, and `kubectl explain` shows their comments. Configurations
//! and Instances are read into the types of `leafhost-core`; a test compares the fields of both.

#![allow(
    clippy::doc_markdown,
    reason = "the comments are the descriptions in the schemas"
)]
#![allow(
    clippy::duplicated_attributes,
    reason = "each column has a name and a type"
)]

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt as _;

mod configuration;
mod discovery_handler;
mod instance;
mod resource_name;

pub use configuration::Configuration;
pub use discovery_handler::{
    ConfigMapName, ConfigurationReport, DiscoveryHandler, DiscoveryHandlerSpec,
    DiscoveryHandlerStatus, Phase, SourceKind, SourceReport,
};
pub use instance::Instance;
pub use resource_name::{ResourceName, ResourceNameSpec};

/// Returns all definitions as the API server accepts them.
pub fn definitions() -> [CustomResourceDefinition; 4] {
    [
        Configuration::crd(),
        without_subresources(Instance::crd()),
        without_subresources(DiscoveryHandler::crd()),
        without_subresources(ResourceName::crd()),
    ]
}

/// Removes the status subresource. With it a POST would drop the status, and agents write spec and status in one request.
fn without_subresources(mut definition: CustomResourceDefinition) -> CustomResourceDefinition {
    for version in &mut definition.spec.versions {
        version.subresources = None;
    }
    definition
}

/// Returns all definitions as YAML documents.
pub fn yaml() -> Result<String, serde_saphyr::SerializeError> {
    let documents = definitions();
    let documents: Result<Vec<_>, _> = documents.iter().map(serde_saphyr::to_string).collect();
    Ok(documents?.join("---\n"))
}

#[cfg(test)]
mod generated;
#[cfg(test)]
mod tests;
