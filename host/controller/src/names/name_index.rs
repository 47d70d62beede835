//! Finds the owners of the names that Configurations and Instances use, by the same rules as the agents. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::configuration::Manifest;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::{NameOwners, ResourceNames, oldest_first};
use leafhost_core::status_store::ConfigurationStates;

/// Collects the owners of names from the reservations and the states of Configurations.
pub fn of_states<'a>(
    reserved: &'a ResourceNames,
    states: &'a ConfigurationStates,
) -> NameOwners<'a> {
    NameOwners::new(reserved, oldest_first(states.configurations.iter()))
}

/// Collects the owners of names from the reservations and the manifests of Configurations.
pub fn of_manifests<'a>(
    reserved: &'a ResourceNames,
    manifests: &'a BTreeMap<ConfigurationKey, Arc<Manifest>>,
) -> NameOwners<'a> {
    let mut all: Vec<_> = manifests.iter().collect();
    all.sort_by_key(|(key, manifest)| {
        let metadata = &manifest.metadata;
        let created = metadata.creation_timestamp.as_deref();
        (created.is_none(), created, metadata.uid.as_deref(), *key)
    });
    NameOwners::new(reserved, all.into_iter().map(|(key, _)| key))
}
