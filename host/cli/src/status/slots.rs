//! `leafhost status slots`: every slot, its holder, and its name for the kubelet.

use std::collections::BTreeSet;

use leafhost_agent::status::{SlotView, Status};
use leafhost_core::device_id::device_id_of;
use leafhost_core::instance::Instance;
use leafhost_core::scheduling::DEVICES;
use leafhost_core::slot::{DeviceUsage, slot_id};
use serde::Serialize;

use super::tables::qualified;
use crate::table::{Cell, Table};
use crate::terminal::Tone;

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Slot {
    /// `namespace/name` of the Instance; without the namespace if it is `default`.
    pub instance: String,
    /// True if the Instance is withdrawn; usually its device is gone.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub withdrawn: bool,
    pub id: String,
    /// Node that holds the slot; absent if it is free.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node: Option<String>,
    /// Resource through which the slot was claimed: the Instance's, the Configuration's or, if a scheduler reserved the
    /// slot, [`DEVICES`].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resource: Option<String>,
    /// Device id of that resource.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<String>,
    /// `namespace/name` of the resource claim that has the slot.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub claim: Option<String>,
    /// Pods that were seen on the agent's node to have the slot, or the pod for which a scheduler reserved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub holder: Option<String>,
    /// Raw entry of `deviceUsage`, if it cannot be parsed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

/// Returns all slots of all Instances, and the slots of deleted Instances that the kubelet still holds.
pub fn list(status: &Status) -> Vec<Slot> {
    let mut slots = Vec::new();
    let mut shown = BTreeSet::new();
    for instance in &status.instances {
        for id in ids(instance) {
            let slot = slot(status, instance, id);
            if let (Some(resource), Some(device)) = (&slot.resource, &slot.device) {
                shown.insert((resource.clone(), device.clone()));
            }
            slots.push(slot);
        }
    }
    for held in held(status) {
        if shown.contains(&(held.resource.clone(), held.device.clone())) {
            continue;
        }
        let instance = held.slot.rsplit_once('-').map_or("", |(name, _)| name);
        let mut instances = status.instances.iter();
        slots.push(Slot {
            instance: instance.to_owned(),
            withdrawn: !instances.any(|one| one.metadata.name == instance),
            id: held.slot.clone(),
            node: Some(status.node.clone()),
            resource: Some(held.resource.clone()),
            device: Some(held.device.clone()),
            holder: held.holder.clone(),
            ..Slot::default()
        });
    }
    slots
}

fn held(status: &Status) -> &[SlotView] {
    let kubelet = status.kubelet.as_ref();
    kubelet.map_or(&[], |kubelet| kubelet.slots.as_slice())
}

/// Returns the ids of the slots within the capacity, and of used slots beyond it: lowering the capacity frees no slot.
fn ids(instance: &Instance) -> Vec<String> {
    let name = &instance.metadata.name;
    let mut ids: Vec<String> = (0..instance.spec.capacity)
        .map(|number| slot_id(name, number))
        .collect();
    let within: BTreeSet<&String> = ids.iter().collect();
    let usage = instance.spec.device_usage.iter();
    let beyond: Vec<String> = usage
        .filter(|(id, holder)| !holder.is_empty() && !within.contains(id))
        .map(|(id, _)| id.clone())
        .collect();
    ids.extend(beyond);
    ids
}

fn slot(status: &Status, instance: &Instance, id: String) -> Slot {
    let text = instance.spec.device_usage.get(&id);
    let text = text.map_or("", String::as_str);
    let mut slot = Slot {
        instance: qualified(&instance.metadata.namespace, &instance.metadata.name),
        id,
        ..Slot::default()
    };
    let Ok(usage) = text.parse::<DeviceUsage>() else {
        slot.unreadable = Some(text.to_owned());
        return slot;
    };
    let Some(node) = usage.node() else {
        return slot;
    };
    slot.node = Some(node.to_owned());
    if let DeviceUsage::Claim {
        namespace, name, ..
    } = &usage
    {
        slot.claim = Some(format!("{namespace}/{name}"));
    }
    if usage.pod().is_some() {
        let reserved = instance.reserved(&slot.id);
        slot.holder = reserved.map(|reserved| reserved.pod.clone());
        slot.resource = Some(DEVICES.to_owned());
        return slot;
    }
    if let Some(device_id) = device_id_of(node, instance, &slot.id, &usage) {
        let seen = held(status).iter().find(|held| {
            node == status.node
                && held.resource == device_id.resource
                && held.device == device_id.id
        });
        slot.holder = seen.and_then(|seen| seen.holder.clone());
        slot.resource = Some(device_id.resource);
        slot.device = Some(device_id.id);
    }
    slot
}

/// Builds the table with one line per slot.
pub fn table(status: &Status) -> Table {
    rows(status, list(status))
}

/// Builds the table of one Instance, with the pods that other nodes have reported.
pub fn table_of(status: &Status, instance: &Instance) -> Table {
    let name = qualified(&instance.metadata.namespace, &instance.metadata.name);
    let mut slots = list(status);
    slots.retain(|slot| slot.instance == name);
    for slot in slots.iter_mut().filter(|slot| slot.holder.is_none()) {
        let node = slot.node.as_ref();
        let node = node.and_then(|node| instance.status.nodes.get(node));
        slot.holder = node.and_then(|node| node.holders.get(&slot.id).cloned());
    }
    rows(status, slots)
}

fn rows(status: &Status, slots: Vec<Slot>) -> Table {
    let mut table = Table::new(&["INSTANCE", "SLOT", "HELD-BY", "THROUGH", "DEVICE", "POD"]);
    for slot in slots {
        let holder = match (&slot.node, &slot.unreadable) {
            (Some(node), _) => node.as_str().into(),
            (None, Some(text)) => Cell::new(Tone::Bad, text),
            (None, None) => Cell::new(Tone::Faint, "free"),
        };
        let pod = match slot.holder {
            Some(pod) => pod.into(),
            None if slot.claim.is_some() => "".into(),
            None if status.kubelet.is_some() && slot.node.as_ref() == Some(&status.node) => {
                Cell::new(Tone::Faint, "none seen")
            }
            None => "".into(),
        };
        let instance = if slot.withdrawn {
            Cell::new(Tone::Bad, format!("{} (withdrawn)", slot.instance))
        } else {
            slot.instance.into()
        };
        table.row([
            instance,
            slot.id.into(),
            holder,
            match &slot.claim {
                Some(claim) => format!("claim {claim}").into(),
                None => slot.resource.unwrap_or_default().into(),
            },
            slot.device.unwrap_or_default().into(),
            pod,
        ]);
    }
    table
}
