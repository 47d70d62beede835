//! What stands behind a resource's name: the Instance or Configuration, and the device as this node sees it now. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::configuration::Resources;
use leafhost_core::device::{Device, DeviceKey, Health};
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfiguredDiscovery, InstanceSet};
use leafhost_core::presence::Presence;
use leafhost_core::problem::Problem;
use leafhost_core::resource_names::NameOwners;

/// Says which object a resource's name stands for. Objects of two namespaces may have one name: it is that of the namespace that
/// [`NameOwners`] says. Of two whose age is not known the first has it, and a Configuration goes before an Instance.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Owners {
    /// By the name of the Instance.
    pub instances: BTreeMap<String, InstanceKey>,
    /// Lists the Instances of a name where they are not the one that has it alone: the kubelet, which knows no namespace, takes them for one.
    pub namesakes: BTreeMap<String, Vec<InstanceKey>>,
    /// By the name of the Configuration.
    pub configurations: BTreeMap<String, ConfigurationKey>,
    /// What is not offered, and why.
    pub problems: BTreeSet<Problem>,
}

impl Owners {
    /// The objects that concern `node`: Instances it sees or has slots of, Configurations it discovers for.
    pub fn new(node: &str, devices: &DeviceSnapshot, instances: &InstanceSet) -> Self {
        let mut owners = Self::default();
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
            let first = || owners.configurations.get(key.name());
            let owner = taken.map(|owner| owner.to_string());
            match owner.or_else(|| first().map(ToString::to_string)) {
                None => drop(
                    owners
                        .configurations
                        .insert(key.name().to_owned(), key.clone()),
                ),
                Some(owner) => drop(owners.problems.insert(Problem::NameTaken {
                    configuration: key.clone(),
                    owner,
                    consumer: "the kubelet",
                })),
            }
        }
        ours.sort();
        for (_, key) in ours {
            let taken = names.taken_from(&key.namespace, &key.name);
            let configuration = || owners.configurations.get(&key.name);
            let first = || owners.instances.get(&key.name);
            let owner = taken
                .map(|owner| owner.to_string())
                .or_else(|| configuration().map(ToString::to_string))
                .or_else(|| first().map(ToString::to_string));
            if let Some(owner) = owner {
                let instance = key;
                let problem = Problem::InstanceNameTaken { instance, owner };
                owners.problems.insert(problem);
            } else {
                owners.instances.insert(key.name.clone(), key);
            }
        }
        for (name, keys) in by_name {
            if keys
                .iter()
                .any(|key| owners.instances.get(name) != Some(key))
            {
                let keys = keys.into_iter().cloned().collect();
                owners.namesakes.insert(name.to_owned(), keys);
            }
        }
        owners
    }

    /// The Instance that has this name, or else the first that is named so.
    pub fn named(&self, instance: &str) -> Option<&InstanceKey> {
        let first = || self.namesakes.get(instance)?.first();
        self.instances.get(instance).or_else(first)
    }

    /// The Instance that has this name, or would have it if it were made.
    pub fn key_of(&self, instance: &str) -> Option<InstanceKey> {
        let made = || {
            let (configuration, _) = instance.rsplit_once('-')?;
            let configuration = self.configurations.get(configuration)?;
            Some(InstanceKey {
                namespace: configuration.namespace().to_owned(),
                name: instance.to_owned(),
            })
        };
        self.instances.get(instance).cloned().or_else(made)
    }
}

/// Whether `before` and `after` concern `node` alike, so that the owners are the same. An Instance that is the same object
/// is not read.
pub fn is_alike(node: &str, before: &InstanceSet, after: &InstanceSet) -> bool {
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

/// An Instance as this node sees it.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The Configuration, if it is in force.
    pub configured: Option<Arc<ConfiguredDiscovery>>,
    /// The device as last reported, unless it is missing.
    pub device: Option<Arc<Device>>,
    /// Whether the device is known to be missing. One that has not been reported since the start is not.
    pub missing: bool,
    /// What is wrong with it.
    pub unhealthy: Option<String>,
}

impl Seen {
    /// Looks the device up. What has not been reported since the agent started is as the Instance's status says.
    pub fn new(node: &str, devices: &DeviceSnapshot, instance: &Instance) -> Self {
        let key = ConfigurationKey::new(
            &instance.metadata.namespace,
            &instance.spec.configuration_name,
        );
        let key = key.ok();
        let configuration = key.as_ref().and_then(|key| devices.configurations.get(key));
        let presence = match (&key, instance.device_id()) {
            (Some(key), Some(id)) => devices.device(
                key,
                &DeviceKey {
                    id: id.to_owned(),
                    shared: instance.spec.shared,
                },
            ),
            // Akri's agent wrote no id.
            (Some(key), None) => match devices.presence(key) {
                Presence::Seen(view) if view.absent.is_gone() => Presence::Gone,
                Presence::Seen(_) | Presence::Unknown => Presence::Unknown,
                Presence::Gone => Presence::Gone,
            },
            (None, _) if devices.absent.is_gone() => Presence::Gone,
            (None, _) => Presence::Unknown,
        };
        let (device, missing) = match presence {
            Presence::Seen(view) => (Some(view), view.missing_since.is_some()),
            Presence::Unknown => (None, false),
            Presence::Gone => (None, true),
        };
        let reported = device.and_then(|device| device.device.as_ref());
        let health = match reported {
            Some(device) => Some(&device.health),
            None => instance.status.nodes.get(node).map(|status| &status.health),
        };
        let unhealthy = match health {
            Some(Health::Unhealthy(why)) => Some(why.clone()),
            _ => None,
        };
        Self {
            configured: configuration.map(|view| Arc::clone(&view.configured)),
            device: reported.filter(|_| !missing).cloned(),
            missing,
            unhealthy,
        }
    }

    /// Whether a container may get the device now.
    pub fn is_offered(&self) -> bool {
        self.device.is_some() && self.unhealthy.is_none() && self.configured.is_some()
    }

    /// Which resources its Configuration has; nothing while that is not in force.
    pub fn resources(&self) -> Option<Resources> {
        let configured = self.configured.as_ref();
        configured.map(|configured| configured.configuration.resources)
    }

    /// Whether a container that has it may go on.
    pub fn is_kept(&self) -> bool {
        !self.missing && self.unhealthy.is_none()
    }
}

#[cfg(test)]
mod tests;
