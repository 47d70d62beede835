//! Plans the writes that make the Instances match the devices of this node. Pure; every plan starts from nothing.
//!
//! Only a difference causes a write, and a write never touches what another node or the kubelet owns: `deviceUsage` is filled in at
//! creation only, and `nodes` and `status.nodes` are edited in this node's own entry.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::clock::Boot;
use leafhost_core::configuration::Configuration;
use leafhost_core::device::{Device, DeviceKey, Health};
use leafhost_core::device_view::{ConfigurationDevices, DeviceSnapshot, DeviceView};
use leafhost_core::instance::{
    CONFIGURATION_LABEL, Edit, GENERATION_ANNOTATION, HeldSlots, Instance, InstanceKey,
    InstanceMetadata, InstanceSpec, InstanceStatus, Leafhost, MAX_REASON, NODE_LABEL, NodeStatus,
    OwnerReference, SHARED_LABEL,
};
use leafhost_core::names::{
    API_VERSION, ConfigurationKey, DigestLength, cdi_name, device_hash, instance_name, label_value,
};
use leafhost_core::ports::{Change, InstanceSet};
use leafhost_core::problem::Problem;
use leafhost_core::slot::slot_id;

/// Names and slots that are in use although the Instances do not show it.
#[derive(Debug, Clone, Default)]
pub struct Reservations {
    /// Names that Instances of other nodes were just found to have.
    pub taken: BTreeSet<InstanceKey>,
    /// Slots that containers were seen to have.
    pub held: Arc<HeldSlots>,
}

/// Result of planning.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Writes to make.
    pub changes: Vec<Change>,
    /// Devices for which no name of an Instance is free.
    pub problems: Vec<Problem>,
}

/// Plans the writes, beginning with the Configurations that need the fewest, so that none waits for another's thousands. Plans nothing
/// before the store has been read. Withdraws only devices that are gone, never unknown ones. If the store `collects` objects of deleted
/// Configurations, their removal is left to it.
pub fn plan(
    node: &str,
    snapshot: &DeviceSnapshot,
    instances: &InstanceSet,
    reservations: &Reservations,
    collects: bool,
) -> Plan {
    if !instances.complete {
        return Plan::default();
    }
    let mut by_configuration: BTreeMap<(&str, &str), Vec<&Instance>> = BTreeMap::new();
    for instance in instances.instances.values() {
        let owner = (
            instance.metadata.namespace.as_str(),
            instance.spec.configuration_name.as_str(),
        );
        by_configuration.entry(owner).or_default().push(instance);
    }
    let (mut plans, mut problems) = (Vec::new(), Vec::new());
    for (key, view) in &snapshot.configurations {
        let held = by_configuration
            .remove(&(key.namespace(), key.name()))
            .unwrap_or_default();
        let planner = Planner {
            node,
            boot: snapshot.boot.as_ref(),
            configuration: &view.configured.configuration,
            reservations,
        };
        plans.push(planner.plan(view, &held, instances, &mut problems));
    }
    for ((namespace, name), held) in by_configuration {
        let is_gone = match ConfigurationKey::new(namespace, name) {
            Ok(key) => snapshot.presence(&key).is_gone(),
            Err(_) => snapshot.absent.is_gone(),
        };
        if is_gone && !collects {
            let withdrawn = held
                .into_iter()
                .filter_map(|instance| withdraw(node, instance));
            plans.push(withdrawn.collect());
        }
    }
    plans.sort_by_key(Vec::len);
    Plan {
        changes: plans.into_iter().flatten().collect(),
        problems,
    }
}

struct Planner<'a> {
    node: &'a str,
    boot: Option<&'a Boot>,
    configuration: &'a Configuration,
    reservations: &'a Reservations,
}

impl Planner<'_> {
    fn plan(
        &self,
        view: &ConfigurationDevices,
        held: &[&Instance],
        all: &InstanceSet,
        problems: &mut Vec<Problem>,
    ) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut nameless: Option<(usize, &str, String)> = None;
        let mut matched: BTreeMap<DeviceKey, &Instance> = BTreeMap::new();
        let mut unidentified: BTreeMap<&str, &Instance> = BTreeMap::new();
        let mut misnamed: Vec<&Instance> = Vec::new();
        for &instance in held {
            if !instance.spec.shared && !is_local_to(self.node, instance) {
                continue;
            }
            match self.device(instance) {
                Some(key) => match matched.entry(key) {
                    Entry::Vacant(free) => drop(free.insert(instance)),
                    // Two nodes created an Instance of this device at the same time: every node keeps the earlier one.
                    Entry::Occupied(mut held) => {
                        let later = if is_before(instance, held.get()) {
                            held.insert(instance)
                        } else {
                            instance
                        };
                        changes.extend(withdraw(self.node, later));
                    }
                },
                // Its name belongs to another device: it must not replace that device's own Instance.
                None if instance.device_id().is_some() => misnamed.push(instance),
                None => drop(unidentified.insert(&instance.metadata.name, instance)),
            }
        }
        let mut names: BTreeSet<InstanceKey> = BTreeSet::new();
        for (key, device) in &view.devices {
            let instance = matched.get(key).copied().or_else(|| {
                // Akri's agent wrote no id: the name identifies the device.
                let instance = *unidentified.get(self.name(key, DigestLength::Three).0.as_str())?;
                (instance.spec.shared == key.shared).then_some(instance)
            });
            match (instance, &device.device) {
                (Some(instance), _) => {
                    unidentified.remove(instance.metadata.name.as_str());
                    changes.extend(self.update(instance, device));
                }
                (None, Some(_)) if self.configuration.deleting => {}
                (None, Some(reported)) => {
                    let free = |name: &str| {
                        let key = InstanceKey::new(self.configuration.key.namespace(), name);
                        let free = !all.instances.contains_key(&key)
                            && !self.reservations.taken.contains(&key)
                            && !names.contains(&key);
                        free.then_some(key)
                    };
                    let mut lengths = DigestLength::ALL.into_iter();
                    if let Some((key, hash)) = lengths.find_map(|length| {
                        let (name, hash) = self.name(key, length);
                        Some((free(&name)?, hash))
                    }) {
                        names.insert(key);
                        let created = self.create(&hash, reported, device);
                        changes.push(Change::Create(Box::new(created)));
                    } else {
                        let first = || (0, key.id.as_str(), self.name(key, DigestLength::Three).0);
                        nameless.get_or_insert_with(first).0 += 1;
                    }
                }
                (None, None) => {}
            }
        }
        problems.extend(
            nameless.map(|(devices, example, name)| Problem::NoFreeName {
                configuration: self.configuration.key.clone(),
                devices,
                example: example.to_owned(),
                name,
            }),
        );
        for (key, instance) in &matched {
            if view.presence(key).is_gone() {
                changes.extend(withdraw(self.node, instance));
            }
        }
        if view.absent.is_gone() {
            for instance in unidentified.values().chain(&misnamed) {
                changes.extend(withdraw(self.node, instance));
            }
        }
        changes
    }

    /// Returns the device of an Instance if its name matches its id.
    fn device(&self, instance: &Instance) -> Option<DeviceKey> {
        let key = instance.device_key()?;
        let name = &instance.metadata.name;
        let mut lengths = DigestLength::ALL.into_iter();
        let is_its = lengths.any(|length| self.name(&key, length).0 == *name);
        is_its.then_some(key)
    }

    fn name(&self, key: &DeviceKey, length: DigestLength) -> (String, String) {
        let local_to = (!key.shared).then_some(self.node);
        let hash = device_hash(&key.id, local_to, length);
        (instance_name(self.configuration.key.name(), &hash), hash)
    }

    fn broker_properties(&self, device: &Device) -> BTreeMap<String, String> {
        let mut properties = device.properties.clone();
        properties.extend(self.configuration.broker_properties.clone());
        properties
    }

    fn create(&self, hash: &str, device: &Device, view: &DeviceView) -> Instance {
        let configuration = self.configuration;
        let (namespace, owner) = (configuration.key.namespace(), configuration.key.name());
        let name = instance_name(owner, hash);
        let generation = configuration.generation.map(|generation| {
            let name = GENERATION_ANNOTATION.to_owned();
            (name, generation.to_string())
        });
        Instance {
            api_version: API_VERSION.to_owned(),
            kind: "Instance".to_owned(),
            metadata: InstanceMetadata {
                name: name.clone(),
                namespace: namespace.to_owned(),
                labels: self.labels(device.shared),
                annotations: generation.into_iter().collect(),
                owner_references: vec![self.owner()],
                ..InstanceMetadata::default()
            },
            spec: InstanceSpec {
                configuration_name: owner.to_owned(),
                cdi_name: cdi_name(owner, hash),
                capacity: configuration.capacity,
                broker_properties: self.broker_properties(device),
                shared: device.shared,
                nodes: vec![self.node.to_owned()],
                device_usage: self.device_usage(namespace, &name),
                leafhost: Some(leafhost(device)),
            },
            status: InstanceStatus {
                nodes: BTreeMap::from([(
                    self.node.to_owned(),
                    self.status(device.health.clone(), view, None),
                )]),
                used: None,
            },
        }
    }

    /// Returns the labels that the watches of the nodes select by.
    fn labels(&self, shared: bool) -> BTreeMap<String, String> {
        if shared {
            let owner = label_value(self.configuration.key.name());
            BTreeMap::from([
                (SHARED_LABEL.to_owned(), "true".to_owned()),
                (CONFIGURATION_LABEL.to_owned(), owner),
            ])
        } else {
            BTreeMap::from([(NODE_LABEL.to_owned(), label_value(self.node))])
        }
    }

    fn owner(&self) -> OwnerReference {
        OwnerReference {
            api_version: API_VERSION.to_owned(),
            kind: "Configuration".to_owned(),
            name: self.configuration.key.name().to_owned(),
            uid: self.configuration.uid.clone(),
            controller: Some(true),
        }
    }

    /// Returns all slots as free, except those that containers have from an earlier Instance.
    fn device_usage(&self, namespace: &str, name: &str) -> BTreeMap<String, String> {
        let key = InstanceKey::new(namespace, name);
        let free =
            (0..self.configuration.capacity).map(|slot| (slot_id(name, slot), String::new()));
        let held = self.reservations.held.get(&key).into_iter().flatten();
        let held = held.map(|(id, usage)| (id.clone(), usage.to_string()));
        free.chain(held).collect()
    }

    /// Returns this node's entry in the status. `held` is the stored one, whose `missing_uptime` is kept for the same `missing_since`.
    fn status(&self, health: Health, view: &DeviceView, held: Option<&NodeStatus>) -> NodeStatus {
        let missing_since = view.missing_since.map(|since| since.to_string());
        let stored = held.filter(|held| held.missing_since == missing_since);
        let stored = stored.and_then(|held| held.missing_uptime.clone());
        let uptime = || Some(self.boot?.uptime(view.missing_since?));
        NodeStatus {
            missing_uptime: stored.or_else(uptime),
            missing_since,
            // Another task writes the holders of slots.
            holders: held.map_or_else(BTreeMap::new, |held| held.holders.clone()),
            ..NodeStatus::new(bounded(health))
        }
    }

    fn update(&self, instance: &Instance, view: &DeviceView) -> Option<Change> {
        let mut edits = Vec::new();
        let owners = &instance.metadata.owner_references;
        let own = &self.configuration.uid;
        let is_others = !own.is_empty() && !owners.iter().any(|owner| owner.uid == *own);
        if is_others && !self.configuration.deleting && view.device.is_some() {
            // The Configuration was deleted and created again: objects of the deleted one would be removed.
            edits.push(Edit::Owner(self.owner()));
        }
        let is_taken_over = !edits.is_empty();
        if let Some(device) = &view.device {
            let mut labels = self.labels(instance.spec.shared);
            labels.retain(|name, value| instance.metadata.labels.get(name) != Some(value));
            if !labels.is_empty() {
                edits.push(Edit::Labels(labels));
            }
            edits.extend(self.common(instance, device, is_taken_over));
            if !instance.is_seen_by(self.node) {
                edits.push(Edit::AddNode(self.node.to_owned()));
            }
        }
        let held = instance.status.nodes.get(self.node);
        let known = view.device.as_ref().map(|device| &device.health);
        let health = known.or(held.map(|held| &held.health));
        let health = health.unwrap_or(&Health::Unknown).clone();
        let status = self.status(health, view, held);
        // A device of an earlier run of which nothing is known needs no write.
        let silent = view.device.is_none() && view.missing_since.is_none();
        if held != Some(&status) && !silent {
            edits.push(Edit::Status {
                node: self.node.to_owned(),
                status,
            });
        }
        (!edits.is_empty()).then(|| Change::edit(instance, edits))
    }

    /// Returns the common fields if they differ. Fields of a newer generation are left to the nodes that know it. If other nodes see the
    /// device, too, and have written the same generation, only values of the Configuration are compared: otherwise the nodes would
    /// endlessly overwrite each other's view of the properties. An Instance of an earlier Configuration `is_taken_over` whatever its
    /// generation.
    fn common(&self, instance: &Instance, device: &Device, is_taken_over: bool) -> Option<Edit> {
        let spec = &instance.spec;
        let replaces = instance.generation().filter(|_| !is_taken_over);
        let generation = self.configuration.generation;
        if generation.is_some() && replaces > generation {
            return None;
        }
        let (properties, leafhost) = (self.broker_properties(device), leafhost(device));
        let others = spec.nodes.iter().any(|node| node != self.node);
        let same = if others && replaces == generation {
            let mut own = self.configuration.broker_properties.iter();
            own.all(|(name, value)| spec.broker_properties.get(name) == Some(value))
        } else {
            let found = spec.leafhost.as_ref();
            spec.broker_properties == properties
                && found.is_some_and(|found| found.is_alike(&leafhost))
        };
        let differs = is_taken_over || !same || spec.capacity != self.configuration.capacity;
        differs.then_some(Edit::Common {
            replaces,
            generation,
            capacity: self.configuration.capacity,
            broker_properties: properties,
            leafhost,
        })
    }
}

/// Cuts the reason to the length that an Instance may have.
fn bounded(mut health: Health) -> Health {
    if let Health::Unhealthy(why) = &mut health {
        why.truncate(why.floor_char_boundary(MAX_REASON));
    }
    health
}

fn leafhost(device: &Device) -> Leafhost {
    Leafhost {
        id: device.id.clone(),
        attributes: device.attributes.clone(),
        capacity: device.capacity.clone(),
        physical_id: device.physical_id.clone(),
        reserved: BTreeMap::new(),
    }
}

/// Returns true if a node sees an Instance, or if no node does and the Instance has the node's label.
pub fn is_local_to(node: &str, instance: &Instance) -> bool {
    instance.is_seen_by(node)
        || (instance.spec.nodes.is_empty()
            && instance.metadata.labels.get(NODE_LABEL) == Some(&label_value(node)))
}

/// Returns true if an Instance was created before another one. Times are compared as text, to the second; names decide a tie.
fn is_before(one: &Instance, other: &Instance) -> bool {
    let created = |instance: &Instance| {
        let metadata = &instance.metadata;
        (metadata.creation_timestamp.clone(), metadata.name.clone())
    };
    created(one) < created(other)
}

/// Returns the change that removes this node from an Instance, or deletes the Instance if no other node is left in it.
fn withdraw(node: &str, instance: &Instance) -> Option<Change> {
    if !is_local_to(node, instance) {
        return None;
    }
    let last = instance.spec.nodes.iter().all(|seen| seen == node);
    Some(if last {
        Change::delete(instance)
    } else {
        Change::edit(instance, vec![Edit::RemoveNode(node.to_owned())])
    })
}

#[cfg(test)]
mod tests;
