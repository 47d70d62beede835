//! Chooses the slots that an allocation claims and builds the answer for the container. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::allocation::take;
use leafhost_core::configuration::MAX_CAPACITY;
use leafhost_core::device_id::{DeviceId, resource, resource_name};
use leafhost_core::edits::Edits;
use leafhost_core::free_slots::{free_slots, left};
use leafhost_core::instance::{Edit, Instance};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::node_order::{in_order, place};
use leafhost_core::ports::Change;
use leafhost_core::slot::{DeviceUsage, slot_number};
use leafhost_core::usable::{Unusable, Usable, usable};
use leafhost_kubelet::{Allocation, DeviceSpec, Mount, Refusal};

use super::context::SlotContext;
use super::slot_state::{SlotKey, SlotState};
use super::snapshot::SLOTS_ANNOTATION;
use super::warmup::WAIT;

/// Number of choices among equal Instances by Configuration; the next choice begins with the next Instance.
pub type RoundRobin = BTreeMap<ConfigurationKey, usize>;

/// Slot chosen for one requested device.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Resource and id by which the kubelet knows it.
    pub device_id: DeviceId,
    /// Instance of the slot.
    pub instance: Arc<Instance>,
    /// Id of the slot.
    pub slot: String,
    /// Value to write to `deviceUsage`; `None` if this node has the slot already.
    pub claim: Option<DeviceUsage>,
    usable: Usable,
}

impl Chosen {
    /// Returns the key of the slot: its Instance and its id.
    pub fn slot_key(&self) -> SlotKey {
        (self.instance.key(), self.slot.clone())
    }
}

impl SlotContext<'_> {
    /// Chooses a slot for each of the ids, or none at all. `reserved` holds the slots of other allocations.
    pub fn choose(
        &self,
        resource: &str,
        ids: &BTreeSet<String>,
        mut reserved: BTreeSet<String>,
        round_robin: &mut RoundRobin,
    ) -> Result<Vec<Chosen>, Refusal> {
        let name = resource_name(resource).unwrap_or_default();
        reserved.extend(self.hidden(resource, ids));
        let mut chosen: Vec<Chosen> = Vec::new();
        // Slots that this node has already determine which Instances remain for the other ids.
        let (again, new): (Vec<_>, Vec<_>) = ids
            .iter()
            .map(|id| DeviceId::new(resource, id))
            .partition(|device_id| {
                let state = self.slot_table.by_device_id.get(device_id);
                state.is_some_and(|state| state.stored.is_some())
            });
        if let Some(device_id) = again.iter().chain(&new).find(|device_id| {
            let state = self.slot_table.by_device_id.get(device_id);
            state.is_some_and(|state| state.is_uncertain(self.kubelet))
        }) {
            return Err(Refusal::Unavailable(format!(
                "{device_id} was held before the kubelet was restarted, and the agent cannot determine whether its pod has ended"
            )));
        }
        for device_id in again {
            chosen.push(self.again(device_id)?);
        }
        if !new.is_empty() {
            if let Some(key) = self.name_index.configurations.get(name) {
                self.through_configuration(key, &new, &mut chosen, &mut reserved, round_robin)?;
            } else {
                let key = self.name_index.instances.get(name);
                let instance = key.and_then(|key| self.instances.instances.get(key));
                for device_id in new {
                    let instance = instance.ok_or_else(|| unknown(resource, &device_id.id))?;
                    let one = self.through_instance(instance, device_id, &reserved)?;
                    reserved.insert(one.slot.clone());
                    chosen.push(one);
                }
            }
        }
        chosen.sort_by(|one, two| one.device_id.id.cmp(&two.device_id.id));
        Ok(chosen)
    }

    /// Returns the slots that are in use although their Instances do not record it, except those of the requested ids.
    fn hidden(&self, resource: &str, ids: &BTreeSet<String>) -> BTreeSet<String> {
        let mut by_name: BTreeMap<&str, Vec<&SlotState>> = BTreeMap::new();
        for name in self.name_index.namesakes.keys() {
            by_name.entry(name).or_default();
        }
        for (device_id, state) in &self.slot_table.by_device_id {
            let is_asked = device_id.resource == resource && ids.contains(&device_id.id);
            let is_suspect = state.stored.is_none() || by_name.contains_key(&*state.instance);
            if is_suspect && !is_asked {
                by_name.entry(&state.instance).or_default().push(state);
            }
        }
        let keys = by_name.into_iter().filter_map(|(name, states)| {
            let key = self.name_index.instances.get(name)?;
            Some(self.taken(key, states.into_iter()))
        });
        keys.flatten().collect()
    }

    /// Chooses the slot that this node already has for a device id: an app container follows an init container of its pod, or the kubelet
    /// gives a new pod the device id of an ended pod.
    fn again(&self, device_id: DeviceId) -> Result<Chosen, Refusal> {
        let state = self.slot_table.by_device_id.get(&device_id);
        let state = state.ok_or_else(|| unknown(&device_id.resource, &device_id.id))?;
        let key = state.stored.as_ref();
        if key != self.name_index.instances.get(&state.instance) {
            return Err(Refusal::Unavailable(format!(
                "{device_id} still belongs to Instance {}, but another Instance has this name at the kubelet; retry after the slot grace",
                key.map(ToString::to_string).unwrap_or_default()
            )));
        }
        let instance = key
            .and_then(|key| self.instances.instances.get(key))
            .ok_or_else(|| Refusal::Unavailable(Unusable::Gone.describe(&state.instance)))?;
        let usable = self.visible(instance)?;
        Ok(Chosen {
            device_id,
            instance: Arc::clone(instance),
            slot: state.slot.clone(),
            claim: None,
            usable,
        })
    }

    fn through_instance(
        &self,
        instance: &Arc<Instance>,
        device_id: DeviceId,
        reserved: &BTreeSet<String>,
    ) -> Result<Chosen, Refusal> {
        let name = &instance.metadata.name;
        let number = slot_number(name, &device_id.id)
            .ok_or_else(|| unknown(&device_id.resource, &device_id.id))?;
        let usable = self.visible(instance)?;
        if self.new.contains_key(&instance.metadata.uid) {
            return Err(Refusal::Unavailable(format!(
                "Instance {name} was created a moment ago, and other nodes may first claim the slots that their pods hold; try again in {} seconds",
                WAIT.as_secs()
            )));
        }
        let usage = instance.spec.device_usage.get(&device_id.id);
        if let Some(usage) = usage.filter(|usage| !usage.is_empty()) {
            return Err(Refusal::Unavailable(format!(
                "slot {} of Instance {name} is used by {usage}",
                device_id.id
            )));
        }
        // A slot above a reduced capacity stays listed while it is used and for a moment after. It can be claimed during that time, and
        // counts toward the capacity.
        if number >= MAX_CAPACITY {
            return Err(unknown(&device_id.resource, &device_id.id));
        }
        let slot = device_id.id.clone();
        if reserved.contains(&slot) || left_beside(instance, reserved) == 0 {
            return Err(full(instance));
        }
        Ok(Chosen {
            claim: Some(DeviceUsage::Node(self.node.to_owned())),
            device_id,
            instance: Arc::clone(instance),
            slot,
            usable,
        })
    }

    /// Chooses a slot of a different Instance for each device id, so that a container gets different devices; Instances with the most free
    /// slots come first. Among equal Instances, nodes begin at opposite ends, and each allocation begins with the next one: otherwise a pod
    /// that also requests a certain Instance would never get both.
    fn through_configuration(
        &self,
        key: &ConfigurationKey,
        device_ids: &[DeviceId],
        chosen: &mut Vec<Chosen>,
        reserved: &mut BTreeSet<String>,
        round_robin: &mut RoundRobin,
    ) -> Result<(), Refusal> {
        let is_ours = |device_id: &&DeviceId| slot_number(key.name(), &device_id.id).is_some();
        if let Some(device_id) = device_ids.iter().find(|device_id| !is_ours(device_id)) {
            return Err(unknown(&device_id.resource, &device_id.id));
        }
        let mut left: BTreeMap<usize, Vec<&Arc<Instance>>> = BTreeMap::new();
        for instance in self.instances_of(key) {
            let count = left_beside(instance, reserved);
            let has = |one: &Chosen| one.instance.metadata.name == instance.metadata.name;
            if count > 0 && !chosen.iter().any(has) {
                left.entry(count).or_default().push(instance);
            }
        }
        let turn = round_robin.entry(key.clone()).or_default();
        let begin = *turn;
        let Some((_, equals)) = left.last_key_value() else {
            return Err(self.none_free(key));
        };
        if equals.len() > 1 {
            *turn = turn.wrapping_add(1);
        }
        let nodes = equals.first().map(|one| &one.spec.nodes);
        let nodes = nodes.map_or(&[][..], Vec::as_slice);
        let own = place(self.node, key.name(), nodes);
        let mut order = Vec::new();
        for equals in left.values().rev() {
            let mut equals = in_order(equals.clone(), own, nodes.len());
            let begin = begin.checked_rem(equals.len()).unwrap_or_default();
            equals.rotate_left(begin);
            order.extend(equals);
        }
        let mut order = order.into_iter();
        for device_id in device_ids {
            let one = order.find_map(|instance| {
                let usable = self.visible(instance).ok()?;
                if self.is_held_back(instance) {
                    return None;
                }
                let free = free_slots(instance, &reserved_of(instance, reserved));
                let (name, nodes) = (&instance.metadata.name, &instance.spec.nodes);
                let free = in_order(free, place(self.node, name, nodes), nodes.len());
                let slot = free.into_iter().next()?;
                Some(Chosen {
                    device_id: device_id.clone(),
                    instance: Arc::clone(instance),
                    slot,
                    claim: Some(DeviceUsage::Configuration {
                        device: device_id.id.clone(),
                        node: self.node.to_owned(),
                    }),
                    usable,
                })
            });
            let one = one.ok_or_else(|| self.none_free(key))?;
            reserved.insert(one.slot.clone());
            chosen.push(one);
        }
        Ok(())
    }

    fn none_free(&self, key: &ConfigurationKey) -> Refusal {
        Refusal::Unavailable(format!(
            "{}: no further Instance of Configuration {} has a free slot on node {}",
            resource(key.name()),
            key.name(),
            self.node
        ))
    }

    fn instances_of(&self, key: &ConfigurationKey) -> impl Iterator<Item = &Arc<Instance>> {
        self.name_index
            .instances
            .values()
            .filter(|instance| instance.namespace == key.namespace())
            .filter_map(|key| self.instances.instances.get(key))
            .filter(|instance| instance.spec.configuration_name == key.name())
    }

    /// Returns the device if a container may get it now.
    fn visible(&self, instance: &Instance) -> Result<Usable, Refusal> {
        let name = &instance.metadata.name;
        usable(self.node, self.devices, instance)
            .map_err(|unusable| Refusal::Unavailable(unusable.describe(name)))
    }
}

/// Returns the number of slots that can still be claimed, not counting the reserved ones.
fn left_beside(instance: &Instance, reserved: &BTreeSet<String>) -> usize {
    left(instance, &reserved_of(instance, reserved))
}

/// Returns the reserved slots of an Instance.
fn reserved_of(instance: &Instance, reserved: &BTreeSet<String>) -> BTreeSet<String> {
    let name = &instance.metadata.name;
    if reserved.is_empty() {
        return BTreeSet::new();
    }
    reserved
        .range(format!("{name}-")..)
        .take_while(|id| id.starts_with(name.as_str()))
        .filter(|id| slot_number(name, id).is_some())
        .cloned()
        .collect()
}

fn unknown(resource: &str, id: &str) -> Refusal {
    Refusal::Unknown(format!("{resource} has no device {id:?} on this node"))
}

fn full(instance: &Instance) -> Refusal {
    Refusal::Unavailable(format!(
        "all {} slots of Instance {} are used",
        instance.spec.capacity, instance.metadata.name
    ))
}

/// Returns the writes of the claims, one for each Instance; each names the state it assumes.
pub fn claims(chosen: &[Chosen]) -> Vec<Change> {
    let mut by_instance: BTreeMap<_, (&Arc<Instance>, Vec<Edit>)> = BTreeMap::new();
    for one in chosen {
        if let Some(usage) = &one.claim {
            let (_, edits) = by_instance
                .entry(one.instance.key())
                .or_insert_with(|| (&one.instance, Vec::new()));
            edits.extend(take(&one.instance, &one.slot, usage));
        }
    }
    let edited = by_instance.into_values();
    edited
        .map(|(instance, edits)| Change::edit(instance, edits))
        .collect()
}

/// Builds the answer for the container from all its devices. Variables without a suffix are those of the first id.
pub fn answer(configuration: Option<&str>, chosen: &[Chosen]) -> Allocation {
    let mut all = Edits::default();
    for one in chosen {
        all.add(one.usable.edits(&one.instance, &BTreeMap::new()));
    }
    let pairs: Vec<String> = chosen
        .iter()
        .map(|one| format!("{}={}", one.device_id.id, one.slot))
        .collect();
    let annotations = configuration
        .map(|name| (format!("{SLOTS_ANNOTATION}/{name}"), pairs.join(" ")))
        .into_iter()
        .collect();
    Allocation {
        annotations,
        ..given(all)
    }
}

/// Converts the container's edits to an answer for the kubelet.
pub fn given(all: Edits) -> Allocation {
    Allocation {
        envs: all.env,
        mounts: all
            .mounts
            .into_values()
            .map(|mount| Mount {
                container_path: mount.container_path,
                host_path: mount.host_path,
                read_only: mount.read_only,
            })
            .collect(),
        devices: all
            .nodes
            .into_values()
            .map(|node| DeviceSpec {
                container_path: node.container_path,
                host_path: node.host_path,
                permissions: node.permissions,
            })
            .collect(),
        annotations: BTreeMap::new(),
    }
}

#[cfg(test)]
mod tests;
