//! Finds the owners of the names that Configurations and Instances use, by the same rules as the agents. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::configuration::Manifest;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::{NameOwners, ResourceNames};
use leafhost_core::status_store::{ConfigurationState, ConfigurationStates};

/// Owners of resource names.
pub struct NameIndex<'a> {
    names: NameOwners<'a>,
}

impl<'a> NameIndex<'a> {
    /// Collects the owners from Configurations as their status shows them.
    pub fn of_states(reserved: &'a ResourceNames, states: &'a ConfigurationStates) -> Self {
        let keys = oldest_first(states.configurations.iter());
        Self {
            names: NameOwners::new(reserved, keys),
        }
    }

    /// Collects the owners from Configurations as they are written.
    pub fn of_manifests(
        reserved: &'a ResourceNames,
        manifests: &'a BTreeMap<ConfigurationKey, Arc<Manifest>>,
    ) -> Self {
        let mut all: Vec<_> = manifests.iter().collect();
        all.sort_by_key(|(key, manifest)| {
            let metadata = &manifest.metadata;
            let created = metadata.creation_timestamp.as_deref();
            (created.is_none(), created, metadata.uid.as_deref(), *key)
        });
        let keys = all.into_iter().map(|(key, _)| key);
        Self {
            names: NameOwners::new(reserved, keys),
        }
    }

    /// Returns the owner of the Configuration's name if the owner is in another namespace.
    pub fn of_configuration(&self, key: &ConfigurationKey) -> Option<String> {
        self.of_name(key.namespace(), key.name())
    }

    /// Returns the owner of an object's name if the owner is not in `namespace`.
    pub fn of_name(&self, namespace: &str, name: &str) -> Option<String> {
        let owner = self.names.taken_from(namespace, name);
        owner.map(|owner| owner.to_string())
    }
}

/// Sorts Configurations by age, the oldest first.
pub fn oldest_first<'a>(
    states: impl Iterator<Item = (&'a ConfigurationKey, &'a Arc<ConfigurationState>)>,
) -> Vec<&'a ConfigurationKey> {
    let mut all: Vec<_> = states.collect();
    all.sort_by_key(|(key, state)| (state.created.is_none(), state.created, &state.uid, *key));
    all.into_iter().map(|(key, _)| key).collect()
}
