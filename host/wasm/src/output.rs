//! Checks the guest's answer: the grants limit what a device may add to the container of a workload.
//!
//! A device that breaks a rule is left out and the others stay; an answer over a limit is refused as a whole. Does not know the store.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use leafhost_core::attribute::AttributeValue;
use leafhost_core::device::{self, Device, DeviceNode, Health, Mount};
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::left_out::LeftOuts;
use leafhost_core::session::{Devices, Discovery};
use leafhost_grants::{Bounds, Limits, Reported};

use crate::bindings::leafhost::discovery::types;

/// Maximum size of a cursor, in bytes.
pub(crate) const MAX_CURSOR: usize = 1 << 20;
/// Maximum number of wakes.
const MAX_WAKES: usize = 64;

/// Refuses an answer of which a part besides its devices exceeds a limit.
pub(crate) fn weigh(answer: &types::Discovery, limits: &Limits) -> Result<(), Fault> {
    let too_large = |what: String| Err(Fault::new(FaultReason::AnswerTooLarge, what));
    let departed = answer.departed.len();
    if departed > usize::try_from(limits.devices).unwrap_or(usize::MAX) {
        return too_large(format!(
            "the answer has {departed} departed devices, at most {}; `limits.devices` in the grants raises it",
            limits.devices
        ));
    }
    let departed: usize = answer.departed.iter().map(String::len).sum();
    weigh_text(departed + of_wakes(&answer.wake), limits)?;
    let cursor = answer.cursor.as_ref().map_or(0, Vec::len);
    if cursor > MAX_CURSOR {
        return too_large(format!(
            "the cursor has {cursor} bytes, at most {MAX_CURSOR}"
        ));
    }
    if answer.wake.len() > MAX_WAKES {
        return too_large(format!(
            "the answer has {} wakes, at most {MAX_WAKES}",
            answer.wake.len()
        ));
    }
    Ok(())
}

/// Converts the devices; leaves out those that break a rule. Refuses devices that exceed a limit together.
pub(crate) fn discovery(
    devices: types::Devices,
    departed: Vec<String>,
    bounds: &Bounds<'_>,
) -> Result<Discovery, Fault> {
    let mut left_out = LeftOuts::default();
    let devices = match devices {
        types::Devices::Unchanged => Devices::Unchanged,
        types::Devices::Complete(list) => Devices::Complete(bounds.devices(list, &mut left_out)?),
        types::Devices::Partial(list) => Devices::Partial(bounds.devices(list, &mut left_out)?),
    };
    let mut known = BTreeSet::new();
    let departed = departed
        .into_iter()
        .filter(|id| device::id_problem(id).is_none() && known.insert(id.clone()))
        .collect();
    Ok(Discovery {
        devices,
        departed,
        left_out,
    })
}

impl Reported for types::Device {
    fn into_device(self, shared: bool) -> (Device, Option<String>) {
        let mut device = Device::new(self.id, self.shared.unwrap_or(shared));
        let mut twice = None;
        device.physical_id = self.physical_id;
        for (name, value) in self.properties {
            let added = add("property", &mut device.properties, name, value);
            twice = twice.or(added.err());
        }
        device.mounts = self
            .mounts
            .into_iter()
            .map(|mount| Mount {
                container_path: mount.container_path,
                host_path: mount.host_path,
                read_only: mount.read_only,
            })
            .collect();
        device.nodes = self
            .device_nodes
            .into_iter()
            .map(|node| DeviceNode {
                container_path: node.container_path,
                host_path: node.host_path,
                permissions: node.permissions,
            })
            .collect();
        for attribute in self.attributes {
            let value = match attribute.value {
                types::AttributeValue::Text(text) => AttributeValue::String(text),
                types::AttributeValue::Integer(number) => AttributeValue::Int(number),
                types::AttributeValue::Boolean(truth) => AttributeValue::Bool(truth),
                types::AttributeValue::Version(version) => AttributeValue::Version(version),
            };
            let added = add("attribute", &mut device.attributes, attribute.name, value);
            twice = twice.or(added.err());
        }
        for (name, quantity) in self.capacity {
            if device.attributes.contains_key(&name) {
                twice.get_or_insert_with(|| format!("capacity {name} is specified twice"));
            }
            let added = add("capacity", &mut device.capacity, name, quantity);
            twice = twice.or(added.err());
        }
        device.health = match self.health {
            types::Health::Healthy => Health::Healthy,
            types::Health::Unhealthy(reason) => Health::Unhealthy(reason),
            types::Health::Unknown => Health::Unknown,
        };
        (device, twice)
    }
}

/// Adds a value under a new name.
fn add<T>(what: &str, map: &mut BTreeMap<String, T>, name: String, value: T) -> Result<(), String> {
    match map.entry(name) {
        Entry::Vacant(place) => drop(place.insert(value)),
        Entry::Occupied(there) => {
            return Err(format!("{what} {} is specified twice", there.key()));
        }
    }
    Ok(())
}

/// Refuses an error that exceeds a limit.
pub(crate) fn weigh_error(error: &types::DiscoveryError, limits: &Limits) -> Result<(), Fault> {
    let text = match error {
        types::DiscoveryError::Unavailable(what) => what.len(),
        types::DiscoveryError::InvalidDetails(problems) => problems
            .iter()
            .map(|problem| problem.path.len() + problem.message.len())
            .sum(),
    };
    weigh_text(text, limits)
}

fn weigh_text(text: usize, limits: &Limits) -> Result<(), Fault> {
    let most = limits.answer;
    if text <= usize::try_from(most).unwrap_or(usize::MAX) {
        return Ok(());
    }
    let message = format!("the answer has {text} bytes of text, at most {most}");
    Err(Fault::new(FaultReason::AnswerTooLarge, message))
}

/// Returns the number of bytes of text in wakes.
fn of_wakes(wakes: &[types::Wake]) -> usize {
    let text = |wake: &types::Wake| match wake {
        types::Wake::After(_) | types::Wake::Network => 0,
        types::Wake::Udev(rule) => rule
            .iter()
            .map(|term| term.value.len() + term.key.as_ref().map_or(0, String::len))
            .sum(),
        types::Wake::Multicast(filter) => {
            filter.group.len() + filter.contains.iter().map(Vec::len).sum::<usize>()
        }
    };
    wakes.iter().map(text).sum()
}

#[cfg(test)]
mod tests;
