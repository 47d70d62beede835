//! Changes of an Instance, each of which says what it assumes. Pure.

use std::collections::BTreeMap;

use super::{GENERATION_ANNOTATION, Instance, Leafhost, NodeStatus, OwnerReference, Reserved};
use crate::slot::{DeviceUsage, slot_number};

/// A change of an Instance, each field the difference it makes. A store applies it to the newest object, so
/// that what others wrote meanwhile stays.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Edit {
    /// Replaces what the creator writes: slots and properties. A compare-and-swap of the generation.
    Common {
        /// The generation that must be there.
        replaces: Option<i64>,
        /// The generation of the Configuration that says so.
        generation: Option<i64>,
        /// `spec.capacity`.
        capacity: u32,
        /// `spec.brokerProperties`.
        broker_properties: BTreeMap<String, String>,
        /// `spec.leafhost`, but for what schedulers have reserved.
        leafhost: Leafhost,
    },
    /// Sets labels.
    Labels(BTreeMap<String, String>),
    /// Replaces the owner: the Configuration was deleted and created again. Its generations begin anew, so the one that was written is
    /// removed.
    Owner(OwnerReference),
    /// Adds a node to `spec.nodes` if it is not there.
    AddNode(String),
    /// Removes a node from `spec.nodes` and its entry from the status.
    RemoveNode(String),
    /// Replaces one node's entry in the status, but for the holders.
    Status {
        /// The node.
        node: String,
        /// Its entry.
        status: NodeStatus,
    },
    /// Replaces the holders in one node's entry in the status, if there is one, and counts the slots that are used.
    Holders {
        /// The node.
        node: String,
        /// By slot.
        holders: BTreeMap<String, String>,
    },
    /// Gives a free slot to the pod for which a scheduler has chosen it. A compare-and-swap, as [`Edit::Slot`].
    Reserve {
        /// `<instance>-<slot>`.
        id: String,
        /// The uid of the pod.
        uid: String,
        /// The node to which the pod is bound.
        node: String,
        /// What `spec.leafhost.reserved` says of the slot then.
        reserved: Reserved,
    },
    /// Hands a slot on: a compare-and-swap of one value of `spec.deviceUsage`. Without an effect on the other slots. What a scheduler has
    /// said of the slot is removed once it is free.
    Slot {
        /// `<instance>-<slot>`.
        id: String,
        /// Who must have it now.
        held: DeviceUsage,
        /// Who has it then.
        new: DeviceUsage,
    },
}

/// The object is not as an edit assumes.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Outdated {
    /// Somebody else has the slot.
    #[error("slot {id} is {}", shown(found))]
    Slot {
        /// The slot.
        id: String,
        /// The value that was found.
        found: String,
    },
    /// The common fields are of another generation.
    #[error("the common fields are of generation {found:?}")]
    Generation {
        /// The generation that was found.
        found: Option<i64>,
    },
}

fn shown(usage: &str) -> String {
    match usage {
        "" => "free".to_owned(),
        usage => format!("used by {usage:?}"),
    }
}

/// Replaces one value of `spec.deviceUsage`, if it is `held`.
fn swap(
    instance: &mut Instance,
    id: &str,
    held: &DeviceUsage,
    new: &DeviceUsage,
) -> Result<(), Outdated> {
    let usage = &mut instance.spec.device_usage;
    let found = usage.get(id).map_or("", String::as_str);
    if found != held.to_string() {
        return Err(Outdated::Slot {
            id: id.to_owned(),
            found: found.to_owned(),
        });
    }
    let number = slot_number(&instance.metadata.name, id);
    let beyond = number.is_none_or(|slot| slot >= instance.spec.capacity);
    // A free slot beyond the capacity is none.
    if *new == DeviceUsage::Unused && beyond {
        usage.remove(id);
    } else {
        usage.insert(id.to_owned(), new.to_string());
    }
    Ok(())
}

impl Edit {
    /// Makes the change. One that fails has changed nothing.
    pub fn apply(&self, instance: &mut Instance) -> Result<(), Outdated> {
        match self {
            Self::Common {
                replaces,
                generation,
                capacity,
                broker_properties,
                leafhost,
            } => {
                let found = instance.generation();
                if found != *replaces {
                    return Err(Outdated::Generation { found });
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
                let new = DeviceUsage::Pod {
                    uid: uid.clone(),
                    node: node.clone(),
                };
                swap(instance, id, &DeviceUsage::Unused, &new)?;
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
}

impl Edit {
    /// Whether the object is as the edit wants it.
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
                let new = DeviceUsage::Pod {
                    uid: uid.clone(),
                    node: node.clone(),
                };
                instance.usage(id) == new.to_string() && instance.reserved(id) == Some(reserved)
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
