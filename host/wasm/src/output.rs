//! Checks the guest's answer: the grants bound what a device makes the host hand to a workload.
//!
//! A device that breaks a rule is left out and the others stay; an answer over a limit is refused as a whole. Does not know the store.

use std::collections::BTreeSet;
use std::collections::btree_map::Entry;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::device::{self, Device, DeviceNode, Health, Mount};
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::left_out::{LeftOut, LeftOuts};
use leafhost_core::session::{Devices, Discovery};
use leafhost_core::text::clean;
use leafhost_grants::{Grants, HandOut, Limits, Resolved, Secrets};

use crate::bindings::leafhost::discovery::types;

/// Maximum size of a cursor, in bytes.
pub(crate) const MAX_CURSOR: usize = 1 << 20;
/// Maximum number of wakes.
const MAX_WAKES: usize = 64;
/// Maximum length of the shown id of a device that was left out, in bytes.
const SHOWN_ID: usize = 256;

/// Rules that an answer is checked against.
pub(crate) struct Bounds<'a> {
    /// Grants with the paths that may be handed out and the limits of the answer.
    pub(crate) grants: &'a Grants,
    /// Default for devices that do not set `shared`.
    pub(crate) shared: bool,
    /// Secrets that no device may show.
    pub(crate) secrets: &'a Secrets,
    /// Device nodes that udev returned to this call.
    pub(crate) udev_nodes: &'a BTreeSet<String>,
    /// Resolves links in a path.
    pub(crate) resolve: &'a (dyn Fn(&str) -> std::io::Result<Resolved> + Sync),
}

impl Bounds<'_> {
    /// Refuses an answer that exceeds a limit, before it is converted.
    pub(crate) fn weigh(&self, answer: &types::Discovery) -> Result<(), Fault> {
        let limits = &self.grants.limits;
        let too_large = |what: String| Err(Fault::new(FaultReason::AnswerTooLarge, what));
        let devices = match &answer.devices {
            types::Devices::Unchanged => &[][..],
            types::Devices::Complete(list) | types::Devices::Partial(list) => list,
        };
        let most = usize::try_from(limits.devices).unwrap_or(usize::MAX);
        if devices.len() > most || answer.departed.len() > most {
            return too_large(format!(
                "the answer has {} devices and {} departed, at most {most} each; `limits.devices` in the grants raises it",
                devices.len(),
                answer.departed.len()
            ));
        }
        let departed: usize = answer.departed.iter().map(String::len).sum();
        let text = departed + devices.iter().map(text).sum::<usize>() + of_wakes(&answer.wake);
        weigh_text(text, limits)?;
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

    /// Converts the devices; leaves out those that break a rule.
    pub(crate) fn discovery(&self, devices: types::Devices, departed: Vec<String>) -> Discovery {
        let mut left_out = LeftOuts::default();
        let devices = match devices {
            types::Devices::Unchanged => Devices::Unchanged,
            types::Devices::Complete(list) => Devices::Complete(self.devices(list, &mut left_out)),
            types::Devices::Partial(list) => Devices::Partial(self.devices(list, &mut left_out)),
        };
        let mut known = BTreeSet::new();
        let departed = departed
            .into_iter()
            .filter(|id| device::id_problem(id).is_none() && known.insert(id.clone()))
            .collect();
        Discovery {
            devices,
            departed,
            left_out,
        }
    }

    fn devices(&self, list: Vec<types::Device>, left_out: &mut LeftOuts) -> Vec<Device> {
        let mut ids = BTreeSet::new();
        let is_new = list.iter().map(|raw| ids.insert(raw.id.as_str()));
        let is_new: Vec<bool> = is_new.collect();
        let mut devices = Vec::with_capacity(list.len());
        for (raw, is_new) in list.into_iter().zip(is_new) {
            let id = raw.id.clone();
            let checked = if is_new {
                self.device(raw)
            } else {
                Err("the id was there before in the same answer; the first one counts".to_owned())
            };
            match checked {
                Ok(device) => devices.push(device),
                Err(reason) => left_out.add(&id, || LeftOut {
                    id: self.secrets.clean(&id, SHOWN_ID),
                    reason: self.secrets.clean(&reason, 1024),
                }),
            }
        }
        devices
    }

    fn device(&self, raw: types::Device) -> Result<Device, String> {
        if text(&raw) > device::MAX_TEXT {
            return Err(format!("has more than {} bytes of text", device::MAX_TEXT));
        }
        self.refuse_secrets(&raw)?;
        let mut device = Device::new(raw.id, raw.shared.unwrap_or(self.shared));
        device.physical_id = raw.physical_id;
        for (name, value) in raw.properties {
            match device.properties.entry(name) {
                Entry::Vacant(place) => drop(place.insert(value)),
                Entry::Occupied(there) => {
                    return Err(format!("property {:?} is specified twice", there.key()));
                }
            }
        }
        device.mounts = raw
            .mounts
            .into_iter()
            .map(|mount| Mount {
                container_path: mount.container_path,
                host_path: mount.host_path,
                read_only: mount.read_only,
            })
            .collect();
        device.nodes = raw
            .device_nodes
            .into_iter()
            .map(|node| DeviceNode {
                container_path: node.container_path,
                host_path: node.host_path,
                permissions: node.permissions,
            })
            .collect();
        for attribute in raw.attributes {
            let value = match attribute.value {
                types::AttributeValue::Text(text) => AttributeValue::String(text),
                types::AttributeValue::Integer(number) => AttributeValue::Int(number),
                types::AttributeValue::Boolean(truth) => AttributeValue::Bool(truth),
                types::AttributeValue::Version(version) => AttributeValue::Version(version),
            };
            match device.attributes.entry(attribute.name) {
                Entry::Vacant(place) => drop(place.insert(value)),
                Entry::Occupied(there) => {
                    return Err(format!("attribute {:?} is specified twice", there.key()));
                }
            }
        }
        for (name, quantity) in raw.capacity {
            let again = device.attributes.contains_key(&name)
                || device.capacity.insert(name.clone(), quantity).is_some();
            if again {
                return Err(format!("capacity {name:?} is specified twice"));
            }
        }
        device.health = match raw.health {
            types::Health::Healthy => Health::Healthy,
            types::Health::Unhealthy(reason) => Health::Unhealthy(reason),
            types::Health::Unknown => Health::Unknown,
        };
        if let Health::Unhealthy(reason) = &mut device.health {
            *reason = clean(reason, 1024);
        }
        if let Some(problem) = device.problem() {
            return Err(problem);
        }
        let hand_out = HandOut {
            grants: &self.grants.devices,
            udev_nodes: self.udev_nodes,
            resolve: self.resolve,
        };
        hand_out.check(&mut device)?;
        Ok(device)
    }

    /// Refuses a device that shows a secret. Runs first, because later errors quote texts escaped, and a secret would not be recognized in
    /// that form.
    fn refuse_secrets(&self, device: &types::Device) -> Result<(), String> {
        if self.secrets.is_empty() {
            return Ok(());
        }
        let mut attributes = device.attributes.iter();
        let numbers = || {
            attributes.find_map(|attribute| match attribute.value {
                types::AttributeValue::Integer(number) => self.secrets.find_number(number),
                _ => None,
            })
        };
        let found = texts(device).find_map(|text| self.secrets.find(text));
        match found.or_else(numbers) {
            Some(name) => Err(format!(
                "has the value of the secret property {name}, or a part of it"
            )),
            None => Ok(()),
        }
    }
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

/// Returns the number of bytes of text in a device as received.
fn text(device: &types::Device) -> usize {
    let numbers = device.attributes.iter().filter(|attribute| {
        let value = &attribute.value;
        matches!(
            value,
            types::AttributeValue::Integer(_) | types::AttributeValue::Boolean(_)
        )
    });
    texts(device).map(String::len).sum::<usize>() + 8 * numbers.count()
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

/// Returns all texts of a device as received.
fn texts(device: &types::Device) -> impl Iterator<Item = &String> {
    let pairs = device.properties.iter().chain(&device.capacity);
    let mounts = device
        .mounts
        .iter()
        .flat_map(|mount| [&mount.container_path, &mount.host_path]);
    let nodes = device
        .device_nodes
        .iter()
        .flat_map(|node| [&node.container_path, &node.host_path, &node.permissions]);
    let attributes = device.attributes.iter().flat_map(|attribute| {
        let text = match &attribute.value {
            types::AttributeValue::Text(text) | types::AttributeValue::Version(text) => Some(text),
            types::AttributeValue::Integer(_) | types::AttributeValue::Boolean(_) => None,
        };
        [Some(&attribute.name), text].into_iter().flatten()
    });
    let reason = match &device.health {
        types::Health::Unhealthy(reason) => Some(reason),
        types::Health::Healthy | types::Health::Unknown => None,
    };
    [Some(&device.id), device.physical_id.as_ref(), reason]
        .into_iter()
        .flatten()
        .chain(pairs.flat_map(|(name, value)| [name, value]))
        .chain(mounts)
        .chain(nodes)
        .chain(attributes)
}

#[cfg(test)]
mod tests;
