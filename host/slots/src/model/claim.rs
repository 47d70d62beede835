//! Chooses the slots that an allocation claims and builds the answer for the container. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::allocation::{self as core, Consumer, Part, Share, take};
use leafhost_core::configuration::MAX_CAPACITY;
use leafhost_core::edits::Edits;
use leafhost_core::free_slots::{free_slots, left};
use leafhost_core::instance::{Edit, Instance};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::node_order::{in_order, place};
use leafhost_core::ports::Change;
use leafhost_core::slot::{DeviceUsage, slot_number};
use leafhost_core::unit::{Unit, resource, resource_name};
use leafhost_core::usable::{Unusable, Usable, usable};
use leafhost_kubelet::{Allocation, DeviceSpec, Mount, Refusal};

use super::context::SlotContext;
use super::hold::{Hold, Place};
use super::newcomers::WAIT;
use super::snapshot::SLOTS_ANNOTATION;

/// Number of choices among equal Instances by Configuration; the next choice begins with the next Instance.
pub type Turns = BTreeMap<ConfigurationKey, usize>;

/// Slot chosen for one requested device.
#[derive(Debug, Clone)]
pub struct Chosen {
    /// Resource and id by which the kubelet knows it.
    pub unit: Unit,
    /// Instance of the slot.
    pub instance: Arc<Instance>,
    /// Id of the slot.
    pub slot: String,
    /// Value to write to `deviceUsage`; `None` if this node has the slot already.
    pub claim: Option<DeviceUsage>,
    usable: Usable,
}

impl Chosen {
    /// Returns the Instance object and the id of the slot.
    pub fn place(&self) -> Place {
        (self.instance.key(), self.slot.clone())
    }
}

impl SlotContext<'_> {
    /// Chooses a slot for each of the ids, or none at all. `reserved` holds the slots of other allocations; the chosen slots are added to
    /// it.
    pub fn choose(
        &self,
        resource: &str,
        ids: &BTreeSet<String>,
        reserved: &mut BTreeSet<String>,
        turns: &mut Turns,
    ) -> Result<Vec<Chosen>, Refusal> {
        let name = resource_name(resource).unwrap_or_default();
        let mut now = reserved.clone();
        now.extend(self.hidden(resource, ids));
        let mut chosen: Vec<Chosen> = Vec::new();
        // Slots that this node has already determine which Instances remain for the other ids.
        let (again, new): (Vec<_>, Vec<_>) = ids
            .iter()
            .map(|id| Unit {
                resource: resource.to_owned(),
                id: id.clone(),
            })
            .partition(|unit| {
                let hold = self.holds.by_unit.get(unit);
                hold.is_some_and(|hold| hold.stored.is_some())
            });
        if let Some(unit) = again.iter().chain(&new).find(|unit| {
            let hold = self.holds.by_unit.get(unit);
            hold.is_some_and(|hold| hold.is_doubtful(self.kubelet))
        }) {
            return Err(Refusal::Unavailable(format!(
                "{unit} was held before the kubelet was restarted, and it cannot be told whether its pod has ended"
            )));
        }
        for unit in again {
            chosen.push(self.again(unit)?);
        }
        if !new.is_empty() {
            if let Some(key) = self.owners.configurations.get(name) {
                self.through_configuration(key, &new, &mut chosen, &mut now, turns)?;
            } else {
                let key = self.owners.instances.get(name);
                let instance = key.and_then(|key| self.instances.instances.get(key));
                for unit in new {
                    let instance = instance.ok_or_else(|| unknown(resource, &unit.id))?;
                    let one = self.through_instance(instance, unit, &now)?;
                    now.insert(one.slot.clone());
                    chosen.push(one);
                }
            }
        }
        let new = chosen.iter().filter(|one| one.claim.is_some());
        reserved.extend(new.map(|one| one.slot.clone()));
        chosen.sort_by(|one, two| one.unit.id.cmp(&two.unit.id));
        Ok(chosen)
    }

    /// Returns the slots that are in use although their Instances do not record it, except those of the requested ids.
    fn hidden(&self, resource: &str, ids: &BTreeSet<String>) -> BTreeSet<String> {
        let mut by_name: BTreeMap<&str, Vec<&Hold>> = BTreeMap::new();
        for name in self.owners.namesakes.keys() {
            by_name.entry(name).or_default();
        }
        for (unit, hold) in &self.holds.by_unit {
            let is_asked = unit.resource == resource && ids.contains(&unit.id);
            let is_suspect = hold.stored.is_none() || by_name.contains_key(&*hold.instance);
            if is_suspect && !is_asked {
                by_name.entry(&hold.instance).or_default().push(hold);
            }
        }
        let keys = by_name.into_iter().filter_map(|(name, holds)| {
            let key = self.owners.instances.get(name)?;
            Some(self.taken(key, holds.into_iter()))
        });
        keys.flatten().collect()
    }

    /// Returns a slot that this node has already, for the app container of a pod whose init container had it, or for a new pod that the
    /// kubelet gives the unit of an ended pod.
    fn again(&self, unit: Unit) -> Result<Chosen, Refusal> {
        let hold = self.holds.by_unit.get(&unit);
        let hold = hold.ok_or_else(|| unknown(&unit.resource, &unit.id))?;
        let key = hold.stored.as_ref();
        if key != self.owners.instances.get(&hold.instance) {
            return Err(Refusal::Unavailable(format!(
                "{unit} still belongs to Instance {}, but another Instance has this name at the kubelet; retry after the slot grace",
                key.map(ToString::to_string).unwrap_or_default()
            )));
        }
        let instance = key
            .and_then(|key| self.instances.instances.get(key))
            .ok_or_else(|| gone(&hold.instance))?;
        let usable = self.visible(instance)?;
        Ok(Chosen {
            unit,
            instance: Arc::clone(instance),
            slot: hold.slot.clone(),
            claim: None,
            usable,
        })
    }

    fn through_instance(
        &self,
        instance: &Arc<Instance>,
        unit: Unit,
        reserved: &BTreeSet<String>,
    ) -> Result<Chosen, Refusal> {
        let name = &instance.metadata.name;
        let number =
            slot_number(name, &unit.id).ok_or_else(|| unknown(&unit.resource, &unit.id))?;
        let usable = self.visible(instance)?;
        if self.new.contains(&instance.metadata.uid) {
            return Err(Refusal::Unavailable(format!(
                "Instance {name} was made a moment ago, and other nodes may claim first what their pods hold of it; try again in {} seconds",
                WAIT.as_secs()
            )));
        }
        let usage = instance.spec.device_usage.get(&unit.id);
        if let Some(usage) = usage.filter(|usage| !usage.is_empty()) {
            return Err(Refusal::Unavailable(format!(
                "slot {} of Instance {name} is used by {usage}",
                unit.id
            )));
        }
        // A slot above a reduced capacity stays listed while it is used, and a moment longer. A container that gets it then takes one of
        // the slots that the capacity leaves.
        if number >= MAX_CAPACITY {
            return Err(unknown(&unit.resource, &unit.id));
        }
        let slot = unit.id.clone();
        if reserved.contains(&slot) || left_beside(instance, reserved) == 0 {
            return Err(full(instance));
        }
        Ok(Chosen {
            claim: Some(DeviceUsage::Node(self.node.to_owned())),
            unit,
            instance: Arc::clone(instance),
            slot,
            usable,
        })
    }

    /// Chooses a slot of another Instance for each unit, so that a container gets different devices; Instances with the most free slots
    /// come first. Among equal Instances nodes begin at opposite ends, and each allocation with the next one: otherwise a pod that also
    /// asks for a certain Instance would never get both.
    fn through_configuration(
        &self,
        key: &ConfigurationKey,
        units: &[Unit],
        chosen: &mut Vec<Chosen>,
        reserved: &mut BTreeSet<String>,
        turns: &mut Turns,
    ) -> Result<(), Refusal> {
        let is_ours = |unit: &&Unit| slot_number(key.name(), &unit.id).is_some();
        if let Some(unit) = units.iter().find(|unit| !is_ours(unit)) {
            return Err(unknown(&unit.resource, &unit.id));
        }
        let mut left: BTreeMap<usize, Vec<&Arc<Instance>>> = BTreeMap::new();
        for instance in self.instances_of(key) {
            let count = left_beside(instance, reserved);
            let has = |one: &Chosen| one.instance.metadata.name == instance.metadata.name;
            if count > 0 && !chosen.iter().any(has) {
                left.entry(count).or_default().push(instance);
            }
        }
        let turn = turns.entry(key.clone()).or_default();
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
        for unit in units {
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
                    unit: unit.clone(),
                    instance: Arc::clone(instance),
                    slot,
                    claim: Some(DeviceUsage::Configuration {
                        device: unit.id.clone(),
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
        self.owners
            .instances
            .values()
            .filter(|instance| instance.namespace == key.namespace())
            .filter_map(|key| self.instances.instances.get(key))
            .filter(|instance| instance.spec.configuration_name == key.name())
    }

    /// Returns the device if a container may get it now.
    fn visible(&self, instance: &Instance) -> Result<Usable, Refusal> {
        let name = &instance.metadata.name;
        usable(self.node, self.devices, instance).map_err(|unusable| match unusable {
            Unusable::Unhealthy { why, .. } => {
                Refusal::Unavailable(format!("the device of Instance {name} is unhealthy: {why}"))
            }
            Unusable::Gone => gone(name),
            Unusable::NotSeen => Refusal::Unavailable(format!(
                "the device of Instance {name} has not been seen since the agent started"
            )),
        })
    }
}

/// Returns the number of slots that can still be taken besides the reserved ones.
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

fn gone(instance: &str) -> Refusal {
    Refusal::Unavailable(format!(
        "the device of Instance {instance} is not there any more"
    ))
}

fn full(instance: &Instance) -> Refusal {
    Refusal::Unavailable(format!(
        "all {} slots of Instance {} are used",
        instance.spec.capacity, instance.metadata.name
    ))
}

/// Returns the writes of the claims, one for each Instance; each names the state it assumes.
pub fn claims(chosen: &[Chosen]) -> Vec<Change> {
    let mut by_instance: BTreeMap<_, (String, Vec<Edit>)> = BTreeMap::new();
    for one in chosen {
        if let Some(usage) = &one.claim {
            let (_, edits) = by_instance
                .entry(one.instance.key())
                .or_insert_with(|| (one.instance.metadata.uid.clone(), Vec::new()));
            edits.extend(take(&one.instance, &one.slot, usage));
        }
    }
    by_instance
        .into_iter()
        .map(|(key, (uid, edits))| Change::Update { key, uid, edits })
        .collect()
}

/// Builds the answer for the container from all its devices. Variables without a suffix are those of the first id.
pub fn answer(configuration: Option<&str>, chosen: &[Chosen]) -> Allocation {
    let share = |one: &Chosen| Share {
        instance: one.instance.key(),
        uid: one.instance.metadata.uid.clone(),
        part: Part::Slot(one.slot.clone()),
    };
    let allocation = core::Allocation {
        // The kubelet does not name the pod it asks for.
        consumer: Consumer::NotKnownYet,
        shares: chosen.iter().map(share).collect(),
    };
    let all = allocation.edits(|share| {
        let one = chosen
            .iter()
            .find(|one| one.instance.metadata.uid == share.uid)?;
        Some((one.instance.hash().unwrap_or_default(), &one.usable))
    });
    let pairs: Vec<String> = chosen
        .iter()
        .map(|one| format!("{}={}", one.unit.id, one.slot))
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
