//! Whose names Configurations and Instances have, as agents see it, too. Pure.

use std::collections::BTreeMap;
use std::sync::Arc;

use leafhost_core::configuration::Manifest;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::{NameOwners, ResourceNames};
use leafhost_core::status_store::{ConfigurationState, ConfigurationStates};

/// Says who has which name.
pub struct Owners<'a> {
    names: NameOwners<'a>,
}

impl<'a> Owners<'a> {
    /// Takes the Configurations as their status shows them.
    pub fn of_states(reserved: &'a ResourceNames, states: &'a ConfigurationStates) -> Self {
        let keys = oldest_first(states.configurations.iter());
        Self {
            names: NameOwners::new(reserved, keys),
        }
    }

    /// Takes the Configurations as they are written.
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

    /// Returns what has the Configuration's name, if that is of another namespace.
    pub fn of_configuration(&self, key: &ConfigurationKey) -> Option<String> {
        self.of_name(key.namespace(), key.name())
    }

    /// Returns what has the name of an object of that namespace, if that is of another one.
    pub fn of_name(&self, namespace: &str, name: &str) -> Option<String> {
        let owner = self.names.taken_from(namespace, name);
        owner.map(|owner| owner.to_string())
    }
}

/// Sorts Configurations by age.
pub fn oldest_first<'a>(
    states: impl Iterator<Item = (&'a ConfigurationKey, &'a Arc<ConfigurationState>)>,
) -> Vec<&'a ConfigurationKey> {
    let mut all: Vec<_> = states.collect();
    all.sort_by_key(|(key, state)| (state.created.is_none(), state.created, &state.uid, *key));
    all.into_iter().map(|(key, _)| key).collect()
}
