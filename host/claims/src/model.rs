//! Finds the Instance of a claim's device, and the slots of it that the claim may take. Pure.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::free_slots::free_slots;
use leafhost_core::instance::Instance;
use leafhost_core::pools::pool_name;
use leafhost_core::ports::InstanceSet;
use leafhost_core::slice_device::{device_name, slot_device_name};
use leafhost_core::slot::{DeviceUsage, slot_id, slot_number};

/// Instance or slot that a device of a pool stands for.
#[derive(Debug, Clone)]
pub struct Found {
    /// Instance of the device.
    pub instance: Arc<Instance>,
    /// Id of the slot, if the device is a single slot of the Instance.
    pub slot: Option<String>,
}

impl Found {
    /// Returns the used slots that the device stands for, as `<slot>=<usage>`.
    pub fn holders(&self) -> Vec<String> {
        let usage = self.instance.spec.device_usage.iter();
        let used = usage.filter(|(slot, text)| {
            let is_meant = self.slot.as_ref().is_none_or(|exact| exact == *slot);
            let number = slot_number(&self.instance.metadata.name, slot);
            is_meant && !text.is_empty() && number.is_some()
        });
        used.map(|(slot, text)| format!("{slot}={text}")).collect()
    }
}

/// Finds the Instance of a device. The pool of local devices has the name of the node, that of shared ones is
/// `<namespace>/<configuration>`.
pub fn find(node: &str, pool: &str, device: &str, instances: &InstanceSet) -> Option<Found> {
    let place = pool.split_once('/');
    let mut candidates = instances.instances.values().filter(|instance| {
        let spec = &instance.spec;
        match place {
            None => pool == node && !spec.shared && instance.is_seen_by(node),
            Some((namespace, _)) => {
                spec.shared
                    && instance.metadata.namespace == namespace
                    && pool_name(namespace, &spec.configuration_name) == pool
            }
        }
    });
    let number = device.rsplit_once('-');
    let number = number.and_then(|(_, number)| number.parse::<u32>().ok());
    candidates.find_map(|instance| {
        let name = &instance.metadata.name;
        let slot = number.filter(|number| {
            *number < instance.spec.capacity && slot_device_name(name, *number) == device
        });
        let is_found = slot.is_some() || device_name(name) == device;
        is_found.then(|| Found {
            instance: Arc::clone(instance),
            slot: slot.map(|number| slot_id(name, number)),
        })
    })
}

/// Chooses a slot for a claim, without those in `taken`. Returns it, and true if the claim has it already: through another node on which
/// pods of the claim run, or because an agent died after it took the slot and before it saved the record of the claim.
pub fn choose(
    found: &Found,
    own: &DeviceUsage,
    taken: &BTreeSet<String>,
) -> Option<(String, bool)> {
    let chosen = settle(&found.instance, own, 1, found.slot.as_slice(), taken);
    let is_had = chosen.take.is_empty();
    let slot = chosen.slots.into_iter().next()?;
    Some((slot, is_had))
}

/// Returns the slots that the claim of `own` has through any node, ordered by number, each with true if the claim has it through this node.
fn of_claim<'a>(
    instance: &'a Instance,
    own: &'a DeviceUsage,
) -> impl Iterator<Item = (&'a String, bool)> {
    let name = &instance.metadata.name;
    let held = instance
        .spec
        .device_usage
        .iter()
        .filter_map(|(slot, text)| {
            let usage: DeviceUsage = text.parse().ok()?;
            let number = slot_number(name, slot)?;
            usage
                .is_of_claim(own)
                .then_some((number, slot, usage == *own))
        });
    let mut held: Vec<_> = held.collect();
    held.sort_unstable();
    held.into_iter().map(|(_, slot, is_own)| (slot, is_own))
}

/// Changes that correct the slots of a claim.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Settlement {
    /// Slots that the claim has afterwards.
    pub slots: Vec<String>,
    /// Slots to take.
    pub take: Vec<String>,
    /// Slots to release.
    pub give_back: Vec<String>,
}

/// Computes the changes after which a prepared claim has `number` slots of an Instance. If `exact` is not empty, the claim may have only
/// these slots. Leaves out the slots in `taken`.
///
/// The scheduler counts a claim's share of a device once, on however many nodes the pods of the claim run. So all of these nodes have the
/// same slots: the first that are marked with the claim, and free ones if these are too few.
pub fn settle(
    instance: &Instance,
    own: &DeviceUsage,
    number: usize,
    exact: &[String],
    taken: &BTreeSet<String>,
) -> Settlement {
    let is_meant = |slot: &String| exact.is_empty() || exact.contains(slot);
    let mut settlement = Settlement::default();
    for (slot, is_own) in of_claim(instance, own).filter(|(slot, _)| !taken.contains(*slot)) {
        if is_meant(slot) && settlement.slots.len() < number {
            settlement.slots.push(slot.clone());
        } else if is_own {
            settlement.give_back.push(slot.clone());
        }
    }
    let missing = number.saturating_sub(settlement.slots.len());
    let free = free_slots(instance, taken).into_iter().filter(is_meant);
    settlement.take = free.take(missing).collect();
    settlement.slots.extend(settlement.take.clone());
    settlement
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mk_instance(usage: &[&str]) -> Instance {
        let usage = usage.iter().enumerate();
        let usage: std::collections::BTreeMap<String, &str> = usage
            .map(|(slot, text)| (format!("cam-{slot}"), *text))
            .collect();
        serde_json::from_value(serde_json::json!({
            "apiVersion": "akri.sh/v0", "kind": "Instance", "metadata": {"name": "cam", "namespace": "lab", "uid": "u"},
            "spec": {"configurationName": "cams", "capacity": 3, "shared": true, "nodes": ["a", "b"], "deviceUsage": usage},
        }))
        .unwrap()
    }

    #[test]
    fn the_nodes_of_a_claim_come_to_have_the_same_slots() {
        let own: DeviceUsage = "R:lab:x:u1:b".parse().unwrap();
        let shown = |usage: &[&str], number, exact: &[&str]| {
            let exact: Vec<String> = exact.iter().map(|one| (*one).to_owned()).collect();
            let done = settle(&mk_instance(usage), &own, number, &exact, &BTreeSet::new());
            let parts = [done.slots, done.take, done.give_back];
            parts
                .map(|part| part.join(",").replace("cam-", ""))
                .join(" ")
        };
        for (usage, number, exact, expected) in [
            (&["R:lab:x:u1:b", "", ""][..], 1, &[][..], "0  "),
            (&["R:lab:x:u1:a", "R:lab:x:u1:b", ""], 1, &[], "0  1"),
            (&["R:lab:x:u1:b", "R:lab:x:u1:a", ""], 1, &[], "0  "),
            (&["R:lab:x:u1:a", "", ""], 1, &[], "0  "),
            (&["R:lab:y:u2:a", "", ""], 1, &[], "1 1 "),
            (&["R:lab:y:u2:a", "", ""], 2, &[], "1,2 1,2 "),
            (&["R:lab:y:u2:a", "", ""], 1, &["cam-0"], "  "),
            (&["", "", ""], 1, &["cam-2"], "2 2 "),
            (&["a", "b", "C:cams-0:a"], 1, &[], "  "),
        ] {
            assert_eq!(shown(usage, number, exact), expected, "{usage:?} {exact:?}");
        }
    }
}
