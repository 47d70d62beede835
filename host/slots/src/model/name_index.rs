//! Maps each resource name to its Instance or Configuration. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use leafhost_core::resource_names::NameOwners;

/// Owners of resource names. Objects of two namespaces may have one name: [`NameOwners`] decides which namespace owns it. If the ages are
/// not known, the first object owns it, and Configurations come before Instances.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NameIndex {
    /// Instances by name.
    pub instances: BTreeMap<String, InstanceKey>,
    /// Instances by name, if several have the name or the only one does not own it: the kubelet, which knows no namespace, takes them for
    /// one.
    pub namesakes: BTreeMap<String, Vec<InstanceKey>>,
    /// Configurations by name.
    pub configurations: BTreeMap<String, ConfigurationKey>,
    /// Objects without a resource, with the owner of their name.
    pub problems: BTreeSet<Problem>,
}

impl NameIndex {
    /// Finds the owners among the objects that concern `node`: Instances it sees or has slots of, Configurations it runs discovery for.
    pub fn new(node: &str, devices: &DeviceSnapshot, instances: &InstanceSet) -> Self {
        let mut name_index = Self::default();
        let mut since: BTreeMap<&ConfigurationKey, &str> = BTreeMap::new();
        let keys: BTreeMap<(&str, &str), &ConfigurationKey> = devices
            .configurations
            .keys()
            .map(|key| ((key.namespace(), key.name()), key))
            .collect();
        let mut ours: Vec<(Option<&str>, InstanceKey)> = Vec::new();
        let mut by_name: BTreeMap<&str, Vec<&InstanceKey>> = BTreeMap::new();
        for (key, instance) in &instances.instances {
            by_name.entry(&key.name).or_default().push(key);
            if !instance.concerns(node) {
                continue;
            }
            let made = instance.metadata.creation_timestamp.as_deref();
            ours.push((made, key.clone()));
            let owner = (
                key.namespace.as_str(),
                instance.spec.configuration_name.as_str(),
            );
            if let (Some(owner), Some(made)) = (keys.get(&owner), made) {
                let oldest = since.entry(owner).or_insert(made);
                *oldest = made.min(oldest);
            }
        }
        let mut configurations: Vec<_> = devices
            .configurations
            .iter()
            .map(|(key, view)| {
                let created = view.configured.configuration.seniority();
                let first = since.get(key).copied();
                (created.is_none(), created, first.is_none(), first, key)
            })
            .collect();
        configurations.sort();
        let aged = configurations.iter().filter(|(ageless, ..)| !ageless);
        let names = NameOwners::new(&devices.names, aged.map(|(.., key)| *key));
        for (_, _, _, _, key) in configurations {
            let taken = names.taken_from(key.namespace(), key.name());
            let first = || name_index.configurations.get(key.name());
            let owner = taken.map(|owner| owner.to_string());
            match owner.or_else(|| first().map(ToString::to_string)) {
                None => drop(
                    name_index
                        .configurations
                        .insert(key.name().to_owned(), key.clone()),
                ),
                Some(owner) => drop(name_index.problems.insert(Problem::NameTaken {
                    configuration: key.clone(),
                    owner,
                    consumer: "the kubelet",
                })),
            }
        }
        ours.sort();
        for (_, key) in ours {
            let taken = names.taken_from(&key.namespace, &key.name);
            let configuration = || name_index.configurations.get(&key.name);
            let first = || name_index.instances.get(&key.name);
            let owner = taken
                .map(|owner| owner.to_string())
                .or_else(|| configuration().map(ToString::to_string))
                .or_else(|| first().map(ToString::to_string));
            if let Some(owner) = owner {
                let instance = key;
                let problem = Problem::InstanceNameTaken { instance, owner };
                name_index.problems.insert(problem);
            } else {
                name_index.instances.insert(key.name.clone(), key);
            }
        }
        for (name, keys) in by_name {
            if keys
                .iter()
                .any(|key| name_index.instances.get(name) != Some(key))
            {
                let keys = keys.into_iter().cloned().collect();
                name_index.namesakes.insert(name.to_owned(), keys);
            }
        }
        name_index
    }

    /// Returns the Instance that owns this name, or else the first with the name.
    pub fn named(&self, instance: &str) -> Option<&InstanceKey> {
        let first = || self.namesakes.get(instance)?.first();
        self.instances.get(instance).or_else(first)
    }

    /// Returns the Instance that owns this name, or would own it if it were created.
    pub fn key_of(&self, instance: &str) -> Option<InstanceKey> {
        let made = || {
            let (configuration, _) = instance.rsplit_once('-')?;
            let configuration = self.configurations.get(configuration)?;
            Some(InstanceKey::new(configuration.namespace(), instance))
        };
        self.instances.get(instance).cloned().or_else(made)
    }
}

/// Returns true if the Instances of `before` and `after` concern `node` in the same way, so that the owners are the same. Instances that
/// share one `Arc` are not compared.
pub fn has_same_names(node: &str, before: &InstanceSet, after: &InstanceSet) -> bool {
    let (before, after) = (&before.instances, &after.instances);
    let place = |instance: &Instance| {
        let made = instance.metadata.creation_timestamp.clone();
        let owner = instance.spec.configuration_name.clone();
        (instance.concerns(node), made, owner)
    };
    before.len() == after.len()
        && before.iter().zip(after).all(|((one, old), (two, new))| {
            one == two && (Arc::ptr_eq(old, new) || place(old) == place(new))
        })
}

#[cfg(test)]
mod tests;
