//! Edits of an Instance, each with its precondition. Pure.

use std::collections::BTreeMap;

use super::{GENERATION_ANNOTATION, Instance, Leafhost, NodeStatus, OwnerReference, Reserved};
use crate::slot::{DeviceUsage, slot_number};

/// Change of an Instance that carries only the fields it changes. A store applies it to the newest object, so that
/// concurrent writes of others are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Replaces the fields that the creator writes: capacity, properties and `spec.leafhost`. A compare-and-swap of the
    /// generation.
    Common {
        /// Generation that the object must have.
        replaces: Option<i64>,
        /// Generation of the Configuration that the new values come from.
        generation: Option<i64>,
        /// New `spec.capacity`.
        capacity: u32,
        /// New `spec.brokerProperties`.
        broker_properties: BTreeMap<String, String>,
        /// New `spec.leafhost`, except for `reserved`, which is kept.
        leafhost: Leafhost,
    },
    /// Adds or overwrites labels.
    Labels(BTreeMap<String, String>),
    /// Replaces the owner reference after the Configuration was deleted and created again. Removes the recorded generation,
    /// since the new object counts its own from the start.
    Owner(OwnerReference),
    /// Adds a node to `spec.nodes` if missing.
    AddNode(String),
    /// Removes a node from `spec.nodes` and its entry from the status.
    RemoveNode(String),
    /// Replaces the status entry of a node, except for its holders.
    Status {
        /// Name of the node.
        node: String,
        /// New entry.
        status: NodeStatus,
    },
    /// Replaces the holders in the status entry of a node, if the entry exists, and updates `status.used`.
    Holders {
        /// Name of the node.
        node: String,
        /// Holders by slot id.
        holders: BTreeMap<String, String>,
    },
    /// Changes the holder of a slot: a compare-and-swap of one value of `spec.deviceUsage`, without effect on other
    /// slots.
    Slot {
        /// Slot id: `<instance>-<slot>`.
        id: String,
        /// Holder that the slot must have.
        held: DeviceUsage,
        /// New holder.
        new: DeviceUsage,
        /// New entry of the slot in `spec.leafhost.reserved`. `None` removes the entry unless the new holder is a pod.
        reserved: Option<Reserved>,
    },
}

/// Failed precondition of an edit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the Instance is not in the state that the edit assumes")]
pub struct Outdated;

/// Replaces the value of a slot in `spec.deviceUsage` if it equals `held`.
fn swap(
    instance: &mut Instance,
    id: &str,
    held: &DeviceUsage,
    new: &DeviceUsage,
) -> Result<(), Outdated> {
    let usage = &mut instance.spec.device_usage;
    let found = usage.get(id).map_or("", String::as_str);
    if found != held.to_string() {
        return Err(Outdated);
    }
    let number = slot_number(&instance.metadata.name, id);
    let beyond = number.is_none_or(|slot| slot >= instance.spec.capacity);
    // A slot beyond the capacity must not be listed as free.
    if *new == DeviceUsage::Unused && beyond {
        usage.remove(id);
    } else {
        usage.insert(id.to_owned(), new.to_string());
    }
    Ok(())
}

impl Edit {
    /// Applies the edit; on error `instance` is unchanged.
    pub fn apply(&self, instance: &mut Instance) -> Result<(), Outdated> {
        match self {
            Self::Common {
                replaces,
                generation,
                capacity,
                broker_properties,
                leafhost,
            } => {
                if instance.generation() != *replaces {
                    return Err(Outdated);
                }
                if let Some(generation) = generation {
                    let annotations = &mut instance.metadata.annotations;
                    annotations.insert(GENERATION_ANNOTATION.to_owned(), generation.to_string());
                }
                instance.spec.capacity = *capacity;
                instance
                    .spec
                    .broker_properties
                    .clone_from(broker_properties);
                let reserved = instance.spec.leafhost.take();
                instance.spec.leafhost = Some(Leafhost {
                    reserved: reserved.unwrap_or_default().reserved,
                    ..leafhost.clone()
                });
            }
            Self::Labels(labels) => {
                let labels = labels.iter();
                let labels = labels.map(|(name, value)| (name.clone(), value.clone()));
                instance.metadata.labels.extend(labels);
            }
            Self::Owner(owner) => {
                let owners = &mut instance.metadata.owner_references;
                owners.retain(|other| other.kind != owner.kind);
                owners.push(owner.clone());
                instance.metadata.annotations.remove(GENERATION_ANNOTATION);
            }
            Self::AddNode(node) => {
                if !instance.spec.nodes.contains(node) {
                    instance.spec.nodes.push(node.clone());
                }
            }
            Self::RemoveNode(node) => {
                instance.spec.nodes.retain(|other| other != node);
                instance.status.nodes.remove(node);
            }
            Self::Status { node, status } => {
                let entry = instance.status.nodes.entry(node.clone());
                let entry = entry.or_insert_with(|| status.clone());
                let holders = std::mem::take(&mut entry.holders);
                *entry = NodeStatus {
                    holders,
                    ..status.clone()
                };
            }
            Self::Holders { node, holders } => {
                if let Some(entry) = instance.status.nodes.get_mut(node) {
                    entry.holders.clone_from(holders);
                }
                instance.status.used = Some(instance.used());
            }
            Self::Slot {
                id,
                held,
                new,
                reserved,
            } => {
                swap(instance, id, held, new)?;
                let leafhost = &mut instance.spec.leafhost;
                if let Some(reserved) = reserved {
                    let leafhost = leafhost.get_or_insert_default();
                    leafhost.reserved.insert(id.clone(), reserved.clone());
                } else if let Some(leafhost) = leafhost.as_mut().filter(|_| new.pod().is_none()) {
                    leafhost.reserved.remove(id);
                }
            }
        }
        Ok(())
    }

    /// Returns true if the object already has the result of the edit.
    pub fn is_made(&self, instance: &Instance) -> bool {
        let mut again = instance.clone();
        match self {
            Self::Slot {
                id, new, reserved, ..
            } => {
                instance.usage(id) == new.to_string()
                    && (reserved.is_none() || instance.reserved(id) == reserved.as_ref())
            }
            Self::Common {
                generation,
                capacity,
                broker_properties,
                leafhost,
                ..
            } => {
                let spec = &instance.spec;
                (generation.is_none() || instance.generation() == *generation)
                    && spec.capacity == *capacity
                    && spec.broker_properties == *broker_properties
                    && spec
                        .leafhost
                        .as_ref()
                        .is_some_and(|found| found.is_alike(leafhost))
            }
            Self::Owner(owner) => instance.metadata.owner_references.contains(owner),
            _ => self.apply(&mut again).is_ok() && again == *instance,
        }
    }
}
