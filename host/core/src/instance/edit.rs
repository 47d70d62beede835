//! Edits of an Instance, each with its precondition. Pure.

use std::collections::BTreeMap;

use super::{GENERATION_ANNOTATION, Instance, Leafhost, NodeStatus, OwnerReference, Reserved};
use crate::slot::{DeviceUsage, slot_number};

/// Change of an Instance that carries only the fields it changes. A store applies it to the newest object, so that
/// concurrent writes of others are kept.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Replaces the fields that the creator writes: slots and properties. A compare-and-swap of the generation.
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
    /// Replaces the owner after the Configuration was deleted and created again. Removes the recorded generation, since
    /// the new object counts its own from the start.
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
    /// Replaces the holders in the status entry of a node, if the entry exists, and counts the used slots.
    Holders {
        /// Name of the node.
        node: String,
        /// Holders by slot id.
        holders: BTreeMap<String, String>,
    },
    /// Assigns a free slot to the pod that a scheduler has chosen it for. A compare-and-swap, as [`Edit::Slot`].
    Reserve {
        /// Slot id: `<instance>-<slot>`.
        id: String,
        /// Uid of the pod.
        uid: String,
        /// Node to which the pod is bound.
        node: String,
        /// New entry of the slot in `spec.leafhost.reserved`.
        reserved: Reserved,
    },
    /// Changes the holder of a slot: a compare-and-swap of one value of `spec.deviceUsage`, without effect on other
    /// slots. Removes the reservation of the slot unless a pod gets it.
    Slot {
        /// Slot id: `<instance>-<slot>`.
        id: String,
        /// Holder that the slot must have.
        held: DeviceUsage,
        /// New holder.
        new: DeviceUsage,
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

/// Returns the usage of a slot that is reserved for a pod.
fn reserved_for(uid: &str, node: &str) -> DeviceUsage {
    DeviceUsage::Pod {
        uid: uid.to_owned(),
        node: node.to_owned(),
    }
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
            Self::Reserve {
                id,
                uid,
                node,
                reserved,
            } => {
                swap(instance, id, &DeviceUsage::Unused, &reserved_for(uid, node))?;
                let leafhost = instance.spec.leafhost.get_or_insert_default();
                leafhost.reserved.insert(id.clone(), reserved.clone());
            }
            Self::Slot { id, held, new } => {
                swap(instance, id, held, new)?;
                if let Some(leafhost) = &mut instance.spec.leafhost
                    && new.pod().is_none()
                {
                    leafhost.reserved.remove(id);
                }
            }
        }
        Ok(())
    }

    /// Returns true if the object already is as the edit would make it.
    pub fn is_made(&self, instance: &Instance) -> bool {
        let mut again = instance.clone();
        match self {
            Self::Slot { id, new, .. } => instance.usage(id) == new.to_string(),
            Self::Reserve {
                id,
                uid,
                node,
                reserved,
            } => {
                let new = reserved_for(uid, node).to_string();
                instance.usage(id) == new && instance.reserved(id) == Some(reserved)
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
