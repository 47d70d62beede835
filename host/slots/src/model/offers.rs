//! Computes the offers to the kubelet: one resource for each Instance and each Configuration, and the health of their ids. Pure.
//!
//! Only changed offers are computed again: an Instance keeps its list while the object, its device and its held slots are the same.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use leafhost_core::attribute::AttributeValue;
use leafhost_core::configuration::{MAX_CAPACITY, Resources};
use leafhost_core::device::Device;
use leafhost_core::device_id::{DeviceId, resource, resource_name, virtual_id};
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::fair::round_robin;
use leafhost_core::free_slots::free_slots;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;
use leafhost_core::slot::{slot_id, slot_number};
use leafhost_core::usable::{Unusable, configured, usable};
use leafhost_kubelet::{Devices, Health, KubeletRun, Offers, ResourceName};

use super::context::SlotContext;
use super::slot_state::SlotState;

/// Maximum number of resource names that a node offers for Instances over its life: the Node object keeps every name, and its size is
/// limited.
pub const NAMES_EVER: usize = 1000;

/// Standard Kubernetes attribute for the NUMA node of a device.
const NUMA_NODE: &str = "resource.kubernetes.io/numaNode";

/// Computes offers and caches them.
#[derive(Debug, Default)]
pub struct OfferBuilder {
    /// Devices of the last call.
    devices: Arc<DeviceSnapshot>,
    cache: BTreeMap<InstanceKey, Computed>,
    offered: BTreeSet<String>,
}

/// Offer of one Instance, with the inputs it was computed from.
#[derive(Debug)]
struct Computed {
    inputs: Inputs,
    list: Arc<Devices>,
    has_free: bool,
    /// Name of its resource, or the problem that prevents one.
    name: Result<ResourceName, Box<Problem>>,
}

/// State of an Instance that affects its offer.
#[derive(Debug, PartialEq)]
struct Inputs {
    instance: Arc<Instance>,
    seen: Seen,
    /// True if free slots of the Instance may be allocated now.
    is_given: bool,
    held: Vec<Held>,
    /// Slots that are in use although the Instance does not record it.
    taken: BTreeSet<String>,
}

/// Parts of a slot's state that affect a list.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Held {
    device_id: DeviceId,
    slot: String,
    availability: Availability,
}

/// Availability of a slot that this node has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Availability {
    /// A container may have the slot. The slot stays healthy, because a restarted kubelet admits the container again only then.
    Kept,
    /// No container has the slot, and the next container may get it.
    Idle,
    /// No container may get the slot.
    Barred,
}

impl Availability {
    fn of(state: &SlotState, key: &InstanceKey, kubelet: Option<KubeletRun>) -> Self {
        if state.holder.is_lost() || (state.absent && state.is_uncertain(kubelet)) {
            Self::Barred
        } else if !state.absent {
            Self::Kept
        } else if state.stored.as_ref() == Some(key) {
            Self::Idle
        } else {
            Self::Barred
        }
    }
}

/// Resources that are offered, and problems that keep others from being offered.
#[derive(Debug, Default)]
pub struct Offered {
    /// Device lists by resource.
    pub offers: Offers,
    /// Names of Instances that were not offered before.
    pub new_names: BTreeSet<String>,
    /// Reasons why resources are not offered.
    pub problems: BTreeSet<Problem>,
}

impl Offered {
    fn put(&mut self, resource: String, list: Devices) {
        if list.is_empty() {
            return;
        }
        match checked(resource) {
            Ok(name) => drop(self.offers.insert(name, Arc::new(list))),
            Err(problem) => drop(self.problems.insert(*problem)),
        }
    }
}

/// Ids, by resource, that are listed in addition to the slots of its Instance and the free ids of its Configuration; true if healthy.
type ExtraIds = BTreeMap<String, Vec<(DeviceId, bool)>>;

/// Upper bounds of the number of resources.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Resources of Instances at the same time.
    pub live: usize,
    /// Names of such resources over the life of the node: the Node object keeps each name.
    pub ever: usize,
}

impl OfferBuilder {
    /// Computes the current offers. `known` are the names that were ever offered. Unless `is_writable`, no free slot is offered.
    pub fn offer(
        &mut self,
        context: SlotContext<'_>,
        is_writable: bool,
        known: &BTreeSet<String>,
        limits: Limits,
    ) -> Offered {
        let SlotContext {
            node,
            devices,
            instances,
            name_index,
            slot_table,
            kubelet,
            ..
        } = context;
        let same_devices = Arc::ptr_eq(&self.devices, devices);
        self.devices = Arc::clone(devices);
        self.cache
            .retain(|key, _| name_index.instances.get(&key.name) == Some(key));
        let mut by_instance: BTreeMap<&str, Vec<(&DeviceId, &SlotState)>> = BTreeMap::new();
        for (device_id, state) in &slot_table.by_device_id {
            by_instance
                .entry(&state.instance)
                .or_default()
                .push((device_id, state));
        }
        // By Configuration: the number of Instances with a free slot, and true if it has any Instance.
        let mut free: BTreeMap<(&str, &str), (u32, bool)> = BTreeMap::new();
        let mut extra = ExtraIds::new();
        for key in name_index.instances.values() {
            let Some(instance) = instances.instances.get(key) else {
                continue;
            };
            let own = by_instance.remove(key.name.as_str()).unwrap_or_default();
            let taken = context.taken(key, own.iter().map(|(_, state)| *state));
            let held: Vec<Held> = own
                .into_iter()
                .map(|(device_id, state)| Held {
                    device_id: device_id.clone(),
                    slot: state.slot.clone(),
                    availability: Availability::of(state, key, kubelet),
                })
                .collect();
            let before = self.cache.get(key).map(|computed| &computed.inputs);
            let same =
                before.filter(|before| same_devices && Arc::ptr_eq(&before.instance, instance));
            let seen = match same {
                Some(before) => before.seen.clone(),
                None => Seen::new(node, devices, instance),
            };
            let inputs = Inputs {
                instance: Arc::clone(instance),
                seen,
                is_given: is_writable && !context.is_held_back(instance),
                held,
                taken,
            };
            if before != Some(&inputs) {
                self.cache.insert(key.clone(), Computed::new(inputs));
            }
            let Some(computed) = self.cache.get(key) else {
                continue;
            };
            let owner = (
                key.namespace.as_str(),
                instance.spec.configuration_name.as_str(),
            );
            let mut has_idle = false;
            for held in computed.inputs.held.iter().filter(|held| {
                !held.device_id.resource.is_empty()
                    && resource_name(&held.device_id.resource) != Some(key.name.as_str())
            }) {
                // At most one idle id for each Instance, so that a container that asks for two gets different devices.
                let is_second = held.availability == Availability::Idle
                    && std::mem::replace(&mut has_idle, true);
                let healthy = computed.inputs.seen.is_healthy(held) && !is_second;
                extra
                    .entry(held.device_id.resource.clone())
                    .or_default()
                    .push((held.device_id.clone(), healthy));
            }
            let sum = free.entry(owner).or_default();
            sum.0 += u32::from(computed.has_free && !has_idle);
            sum.1 = true;
        }
        // The Instances of these ids are gone; the kubelet still has the ids and must not give them to any pod.
        for (device_id, _) in by_instance.into_values().flatten() {
            if !device_id.resource.is_empty() {
                let ids = extra.entry(device_id.resource.clone()).or_default();
                ids.push((device_id.clone(), false));
            }
        }
        let mut offered = Offered::default();
        self.list_instances(&mut extra, known, limits, &mut offered);
        for (name, key) in &name_index.configurations {
            let view = devices.configurations.get(key);
            if view.is_some_and(|view| !view.configured.configuration.resources.has_configuration())
            {
                continue;
            }
            let resource = resource(name);
            let used = extra.remove(&resource).unwrap_or_default();
            let (free, any) = free
                .get(&(key.namespace(), key.name()))
                .copied()
                .unwrap_or_default();
            let list = configuration_list(key, &used, free, any);
            offered.put(resource, list);
        }
        // Lists the slots of containers even if the Instance is gone, or the Configuration is absent, not read yet or without a resource.
        for (resource, ids) in extra {
            let ids = ids.into_iter();
            let list =
                ids.map(|(device_id, healthy)| (device_id.id, device(health(healthy), None)));
            offered.put(resource, list.collect());
        }
        offered
    }

    fn list_instances(
        &mut self,
        extra: &mut ExtraIds,
        known: &BTreeSet<String>,
        limits: Limits,
        offered: &mut Offered,
    ) {
        let mut candidates: Vec<(&str, &Computed)> = self
            .cache
            .values()
            .filter(|computed| !computed.list.is_empty())
            .map(|computed| (computed.inputs.instance.metadata.name.as_str(), computed))
            .collect();
        let is_new = |name: &str| !known.contains(name);
        let new = candidates.iter().filter(|(name, _)| is_new(name)).count();
        if candidates.len() > limits.live || known.len().saturating_add(new) > limits.ever {
            candidates.sort_by_key(|(name, computed)| {
                (
                    !self.offered.contains(*name),
                    // After a restart the names offered before come first: any other would use up a new name.
                    is_new(name),
                    computed
                        .inputs
                        .instance
                        .metadata
                        .creation_timestamp
                        .as_deref(),
                    *name,
                )
            });
            // Namespaces take turns, so that none uses up the names of the others.
            candidates = round_robin(candidates, |(_, computed)| {
                computed.inputs.instance.metadata.namespace.as_str()
            });
            candidates.sort_by_key(|(_, computed)| computed.inputs.held.is_empty());
        }
        let all = candidates.len();
        let (mut full, mut worn, mut chosen) = (0_usize, 0_usize, Vec::new());
        let mut ever = known.len();
        for (name, computed) in candidates {
            let (new, free) = (is_new(name), computed.inputs.held.is_empty());
            if chosen.len() >= limits.live && free {
                full += 1;
            } else if new && ever >= limits.ever && free {
                worn += 1;
            } else {
                ever += usize::from(new);
                chosen.push((name, computed));
            }
        }
        if full > 0 {
            offered.problems.insert(Problem::TooManyResources {
                over: full,
                all,
                most: limits.live,
            });
        }
        if worn > 0 {
            offered.problems.insert(Problem::ResourceNamesExhausted {
                over: worn,
                names: known.len(),
            });
        }
        let is_same = chosen.len() == self.offered.len()
            && chosen.iter().all(|(name, _)| self.offered.contains(*name));
        let names = (!is_same).then(|| chosen.iter().map(|(name, _)| (*name).to_owned()).collect());
        for (name, computed) in chosen {
            if is_new(name) {
                offered.new_names.insert(name.to_owned());
            }
            let more = extra.remove(&resource(name));
            match (&computed.name, more) {
                (Err(problem), _) => drop(offered.problems.insert(Problem::clone(problem))),
                (Ok(name), None) => {
                    let list = Arc::clone(&computed.list);
                    offered.offers.insert(name.clone(), list);
                }
                (Ok(_), Some(more)) => {
                    let mut list = Devices::clone(&computed.list);
                    for (device_id, healthy) in more {
                        list.entry(device_id.id)
                            .or_insert_with(|| device(health(healthy), None));
                    }
                    offered.put(resource(name), list);
                }
            }
        }
        if let Some(names) = names {
            self.offered = names;
        }
    }
}

/// State of an Instance's device that affects its list.
#[derive(Debug, Clone, PartialEq)]
struct Seen {
    device: Option<Arc<Device>>,
    /// True if a container that has the device may keep it.
    kept: bool,
    /// True if a container may get the device.
    offered: bool,
    resources: Option<Resources>,
}

impl Seen {
    fn new(node: &str, devices: &DeviceSnapshot, instance: &Instance) -> Self {
        let configured = configured(devices, instance);
        let usable = usable(node, devices, instance);
        let (kept, offered) = match &usable {
            Ok(_) => (true, true),
            Err(unusable) => (unusable.is_kept(), false),
        };
        let device = match usable {
            Ok(usable) => Some(usable.device),
            Err(Unusable::Unhealthy { device, .. }) => device,
            Err(Unusable::Gone | Unusable::NotSeen) => None,
        };
        Self {
            device,
            kept,
            offered,
            resources: configured.map(|one| one.configuration.resources),
        }
    }

    fn is_healthy(&self, held: &Held) -> bool {
        match held.availability {
            Availability::Kept => self.kept,
            Availability::Idle => self.offered,
            Availability::Barred => false,
        }
    }
}

fn checked(resource: String) -> Result<ResourceName, Box<Problem>> {
    ResourceName::new(resource.clone()).map_err(|error| {
        Box::new(Problem::InvalidResourceName {
            resource,
            error: error.to_string(),
        })
    })
}

fn health(is_good: bool) -> Health {
    if is_good {
        Health::Healthy
    } else {
        Health::Unhealthy
    }
}

fn device(health: Health, numa: Option<i64>) -> leafhost_kubelet::Device {
    leafhost_kubelet::Device { health, numa }
}

impl Computed {
    fn new(inputs: Inputs) -> Self {
        let (instance, seen) = (&inputs.instance, &inputs.seen);
        let numa = seen.device.as_ref().and_then(|device| numa(device));
        let free: BTreeSet<String> = free_slots(instance, &inputs.taken).into_iter().collect();
        let is_given = seen.offered && inputs.is_given;
        let own = resource(&instance.metadata.name);
        let mut list = Devices::new();
        // If the Instance has no resource, or its Configuration is unknown, only the slots of containers are listed.
        let capacity = if seen.resources.is_some_and(Resources::has_instances) {
            instance.spec.capacity.min(MAX_CAPACITY)
        } else {
            0
        };
        for slot in 0..capacity {
            let id = slot_id(&instance.metadata.name, slot);
            let health = health(is_given && free.contains(&id));
            list.insert(id, device(health, numa));
        }
        let held = inputs.held.iter();
        for held in held.filter(|held| held.device_id.resource == own) {
            let health = health(seen.is_healthy(held));
            list.insert(held.slot.clone(), device(health, numa));
        }
        Self {
            list: Arc::new(list),
            has_free: is_given && !free.is_empty(),
            name: checked(own),
            inputs,
        }
    }
}

/// Returns the virtual devices of a Configuration: those this node has, and one for each Instance with a free slot, so that a container
/// that asks for several gets different Instances.
fn configuration_list(
    key: &ConfigurationKey,
    used: &[(DeviceId, bool)],
    free: u32,
    any: bool,
) -> Devices {
    let mut list = Devices::new();
    for (device_id, healthy) in used {
        let health = health(*healthy);
        list.insert(device_id.id.clone(), device(health, None));
    }
    let taken: BTreeSet<u32> = list
        .keys()
        .filter_map(|id| slot_number(key.name(), id))
        .collect();
    let mut numbers = (0..u32::MAX).filter(|number| !taken.contains(number));
    for number in numbers
        .by_ref()
        .take(usize::try_from(free).unwrap_or_default())
    {
        let id = virtual_id(key.name(), number);
        list.insert(id, device(Health::Healthy, None));
    }
    if list.is_empty()
        && any
        && let Some(number) = numbers.next()
    {
        // The resource stays listed while other nodes have all its slots.
        let id = virtual_id(key.name(), number);
        list.insert(id, device(Health::Unhealthy, None));
    }
    list
}

fn numa(device: &Device) -> Option<i64> {
    match device.attributes.get(NUMA_NODE)? {
        AttributeValue::Int(node) => Some(*node).filter(|node| *node >= 0),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
