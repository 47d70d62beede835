//! Tells which Instance a device of a claim is, and which of its slots the claim may take. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::free_slots::free_slots;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::InstanceSet;
use leafhost_core::slice_device::{device_name, slot_device_name};
use leafhost_core::slot::{DeviceUsage, slot_id, slot_number};

/// Is what a device of a pool stands for.
#[derive(Debug, Clone)]
pub struct Found {
    /// The Instance.
    pub instance: Arc<Instance>,
    /// The slot, if the device is one of an Instance.
    pub slot: Option<u32>,
}

/// Finds the Instance of a device. The pool of local devices is called as the node, that of shared ones `<namespace>/<configuration>`.
pub fn find(node: &str, pool: &str, device: &str, instances: &InstanceSet) -> Option<Found> {
    let place = pool.split_once('/');
    let candidates = instances.instances.values().filter(|instance| {
        let spec = &instance.spec;
        match place {
            None => pool == node && !spec.shared && spec.nodes.iter().any(|one| one == node),
            Some((namespace, configuration)) => {
                spec.shared
                    && instance.metadata.namespace == namespace
                    && spec.configuration_name == configuration
            }
        }
    });
    for instance in candidates {
        let name = &instance.metadata.name;
        if device_name(name) == device {
            let instance = Arc::clone(instance);
            return Some(Found {
                instance,
                slot: None,
            });
        }
        let number = device
            .rsplit_once('-')
            .and_then(|(_, number)| number.parse().ok());
        if let Some(number) = number
            && number < instance.spec.capacity
            && slot_device_name(name, number) == device
        {
            let instance = Arc::clone(instance);
            return Some(Found {
                instance,
                slot: Some(number),
            });
        }
    }
    None
}

/// Says which slot a claim takes.
#[derive(Debug, PartialEq, Eq)]
pub enum Choice {
    /// This one, which it has already: somebody has died between taking it and remembering that.
    Own(String),
    /// This one, which is free.
    Free(String),
    /// None is free; these have them.
    None(Vec<String>),
}

/// Chooses a slot for a claim, none of `taken`.
pub fn choose(found: &Found, own: &DeviceUsage, taken: &BTreeSet<(InstanceKey, String)>) -> Choice {
    let instance = &*found.instance;
    let (name, key) = (&instance.metadata.name, instance.key());
    let exact = found.slot.map(|number| slot_id(name, number));
    let is_meant = |slot: &String| exact.as_ref().is_none_or(|exact| exact == slot);
    let taken: BTreeSet<String> = taken
        .iter()
        .filter(|(other, _)| *other == key)
        .map(|(_, slot)| slot.clone())
        .collect();
    let usage = instance.spec.device_usage.iter();
    let mut held = usage.filter(|(slot, text)| {
        is_meant(slot)
            && !taken.contains(*slot)
            && text.parse().is_ok_and(|one: DeviceUsage| one == *own)
    });
    if let Some((slot, _)) = held.next() {
        return Choice::Own(slot.clone());
    }
    if let Some(slot) = free_slots(instance, &taken).into_iter().find(is_meant) {
        return Choice::Free(slot);
    }
    let holders = instance.spec.device_usage.iter();
    let holders = holders.filter(|(slot, text)| {
        is_meant(slot) && !text.is_empty() && slot_number(name, slot).is_some()
    });
    Choice::None(
        holders
            .map(|(slot, text)| format!("{slot}={text}"))
            .collect(),
    )
}
