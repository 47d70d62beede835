//! Devices, pods and Nodes of the cluster as the watches show them.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use leafhost_core::device::Health;
use leafhost_core::free_slots::free_slots;
use leafhost_core::instance::{Instance, InstanceKey, InstanceStatus, Leafhost};
use leafhost_core::instance_view::version;
use leafhost_core::resource_names::ResourceNames;
use leafhost_core::scheduling::{NodeSeen, Pod, PodKey};
use leafhost_core::slot::DeviceUsage;
use leafhost_select::DeviceAttributes;

/// Index of a device, valid while the device is known.
pub type Number = usize;

/// Device of an Instance.
#[derive(Debug)]
pub struct Device {
    /// Instance of the device with only those fields that reservations need.
    pub instance: Arc<Instance>,
    /// Attributes and capacities that expressions can read.
    pub attributes: DeviceAttributes,
    /// Version of `attributes`; changes whenever they change and is never 0.
    pub version: u64,
    /// Nodes on which the device is usable: present and not reported unhealthy.
    pub nodes: BTreeSet<String>,
    /// Slots that a pod may take.
    pub free: Vec<String>,
}

/// Slot that is reserved for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// Key of the device's Instance.
    pub device: InstanceKey,
    /// Name of the slot.
    pub slot: String,
    /// Uid of the pod.
    pub uid: String,
    /// Node that the device is reserved on.
    pub node: String,
    /// Namespace and name of the pod; empty if the Instance does not name it.
    pub pod: PodKey,
    /// True if the node reports that a container of the pod has the slot. The agent there then knows when to release it.
    pub is_held: bool,
}

/// Devices by the name of their Configuration, in the order of their Instances' names.
type Owned = BTreeMap<String, Vec<Number>>;

/// Index of values by a name, with any number of values for each.
type Index<T> = BTreeSet<(String, T)>;

/// Returns the values of `index` under a name.
fn named<'a, T: Ord + Default>(index: &'a Index<T>, name: &'a str) -> impl Iterator<Item = &'a T> {
    let from = index.range((name.to_owned(), T::default())..);
    let own = from.take_while(move |(other, _)| other == name);
    own.map(|(_, value)| value)
}

/// Objects of the cluster as the watches show them, with indexes.
#[derive(Debug, Default)]
pub struct World {
    devices: Vec<Option<Device>>,
    unused: Vec<Number>,
    by_key: BTreeMap<InstanceKey, Number>,
    /// Devices by the name of the Instance, in any namespace.
    by_name: Index<Number>,
    /// Devices by node and Configuration name, of all namespaces.
    by_node: HashMap<String, Owned>,
    /// Number of devices by Configuration name and namespace.
    namespaces: BTreeMap<String, BTreeMap<String, usize>>,
    names: Arc<ResourceNames>,
    /// Last version given to a device's attributes.
    versions: u64,
    reserved: BTreeMap<InstanceKey, Vec<Reservation>>,
    /// Instances with reservations for a pod, by the pod's uid and by its `namespace/name`.
    by_pod: Index<InstanceKey>,
    /// Pods that ask for devices.
    pods: BTreeMap<PodKey, Pod>,
    /// Pods by the name of an Instance they were given.
    given: Index<PodKey>,
    /// Devices of which a running pod has lost its slot; may contain others.
    short: BTreeSet<Number>,
    /// Pairs of uids, of a pod and of a newer Instance of which the pod has got its slot back.
    pub restored: BTreeSet<(String, String)>,
    /// Nodes with their locks by name; `None` before they were listed.
    pub locks: Option<BTreeMap<String, NodeSeen>>,
    /// True once the Instances were listed.
    pub has_instances: bool,
    /// True once the pods were listed.
    pub has_pods: bool,
}

impl World {
    /// Removes the Instances that a complete list, `listed`, does not contain.
    pub fn end_list(&mut self, listed: &BTreeSet<InstanceKey>) {
        let gone = self.by_key.keys().filter(|key| !listed.contains(*key));
        for key in gone.cloned().collect::<Vec<_>>() {
            self.remove(&key);
        }
        self.has_instances = true;
    }

    /// Stores an Instance, unless a newer version is known. Returns true if it may serve a pod better than before.
    pub fn put(&mut self, instance: Arc<Instance>) -> bool {
        let before = self.get(&instance.key());
        let is_older = before.is_some_and(|before| version(&before.instance) > version(&instance));
        !is_older && self.put_listed(instance)
    }

    /// Stores an Instance of a list, even if a newer version is known. The watch shows newer ones afterwards. Returns true if it may serve a pod
    /// better than before.
    pub fn put_listed(&mut self, instance: Arc<Instance>) -> bool {
        let key = instance.key();
        let before = self.get(&key);
        let Some(owner) = instance.configuration() else {
            return false;
        };
        let attributes = DeviceAttributes::of(&owner, &instance);
        let is_same = before.is_some_and(|before| {
            before.attributes == attributes
                && before.instance.spec.capacity == instance.spec.capacity
        });
        let (old_nodes, old_free) = before.map_or((BTreeSet::new(), 0), |before| {
            (before.nodes.clone(), before.free.len())
        });
        let reserved = reservations(&instance);
        let mut device = Device {
            attributes,
            version: 0,
            nodes: nodes(&instance),
            free: free(&instance),
            instance: slim(instance),
        };
        self.reserve(&key, reserved);
        let number = if let Some(number) = self.by_key.get(&key) {
            *number
        } else {
            let spaces = self
                .namespaces
                .entry(configuration_of(&device))
                .or_default();
            *spaces.entry(key.namespace.clone()).or_default() += 1;
            let number = self.unused.pop().unwrap_or(self.devices.len());
            if number == self.devices.len() {
                self.devices.push(None);
            }
            self.by_name.insert((key.name.clone(), number));
            self.by_key.insert(key, number);
            number
        };
        let name = configuration_of(&device);
        let of_device = &device.instance.metadata.name;
        for node in old_nodes.difference(&device.nodes) {
            self.leave(node, &name, number);
        }
        for node in device.nodes.difference(&old_nodes) {
            let own = self.by_node.entry(node.clone()).or_default();
            let numbers = own.entry(name.clone()).or_default();
            let is_before = |other: &Number| {
                let other = self.devices.get(*other).and_then(Option::as_ref);
                other.is_some_and(|other| other.instance.metadata.name < *of_device)
            };
            numbers.insert(numbers.partition_point(is_before), number);
        }
        let is_better = device.free.len() > old_free
            || !device.free.is_empty()
                && (!is_same || device.nodes.iter().any(|node| !old_nodes.contains(node)));
        if let Some(place) = self.devices.get_mut(number) {
            device.version = match place.take() {
                Some(before) if is_same => before.version,
                _ => {
                    self.versions += 1;
                    self.versions
                }
            };
            *place = Some(device);
        }
        self.hold_back(number);
        is_better
    }

    /// Replaces all pods.
    pub fn list_pods(&mut self, all: Vec<Pod>) {
        let gone: Vec<PodKey> = self.pods.keys().cloned().collect();
        for key in gone {
            self.unlink(&key);
        }
        let uids: BTreeSet<String> = all.iter().map(|pod| pod.uid.clone()).collect();
        self.restored.retain(|(uid, _)| uids.contains(uid));
        for pod in all {
            self.put_pod(pod);
        }
        self.has_pods = true;
    }

    /// Stores a pod and returns its previous state.
    pub fn put_pod(&mut self, pod: Pod) -> Option<Pod> {
        let before = self.unlink(&pod.key);
        for name in pod.allocated.values().flatten() {
            self.given.insert((name.clone(), pod.key.clone()));
        }
        let key = pod.key.clone();
        self.pods.insert(key.clone(), pod);
        for number in self.numbers_of(&key) {
            self.hold_back(number);
        }
        before
    }

    /// Removes a pod and returns its last state.
    pub fn remove_pod(&mut self, key: &PodKey) -> Option<Pod> {
        let pod = self.unlink(key)?;
        self.restored.retain(|(uid, _)| *uid != pod.uid);
        Some(pod)
    }

    fn unlink(&mut self, key: &PodKey) -> Option<Pod> {
        let numbers = self.numbers_of(key);
        let pod = self.pods.remove(key)?;
        for name in pod.allocated.values().flatten() {
            self.given.remove(&(name.clone(), key.clone()));
        }
        for number in numbers {
            self.hold_back(number);
        }
        Some(pod)
    }

    /// Returns the pods that ask for devices.
    pub fn pods(&self) -> &BTreeMap<PodKey, Pod> {
        &self.pods
    }

    /// Returns the running pods that were given the device of an Instance but have no slot of it, because it was deleted and created again.
    pub fn without_slot(&self, instance: &Instance) -> Vec<&Pod> {
        let mut pods = named(&self.given, &instance.metadata.name).peekable();
        if pods.peek().is_none() {
            return Vec::new();
        }
        if self.owner(&instance.spec.configuration_name) != Some(&instance.metadata.namespace) {
            return Vec::new();
        }
        let made = instance.metadata.creation_timestamp.as_deref();
        let made = made.unwrap_or_default();
        let reserved = self.reserved.get(&instance.key());
        let has_slot = |pod: &Pod| {
            let mut reserved = reserved.into_iter().flatten();
            reserved.any(|one| one.uid == pod.uid)
        };
        let pods = pods.filter_map(|key| self.pods.get(key));
        let lost = pods.filter(|pod| {
            let uids = (pod.uid.clone(), instance.metadata.uid.clone());
            // Both timestamps are in whole seconds.
            let is_older = !pod.bound_at.is_empty() && *pod.bound_at <= *made;
            is_older && !pod.has_ended && !has_slot(pod) && !self.restored.contains(&uids)
        });
        lost.collect()
    }

    /// Returns the running pods that have lost their slot, each with the Instance and the slot held back for it, if one is free.
    pub fn short(&self) -> impl Iterator<Item = (&Arc<Instance>, &Pod, Option<String>)> {
        let devices = self.short.iter();
        let devices = devices.filter_map(|number| self.device(*number));
        devices.flat_map(|device| {
            let pods = self.without_slot(&device.instance);
            let slots = match pods.len() {
                0 => Vec::new(),
                _ => free(&device.instance),
            };
            // The last slots are held back.
            let slots = slots.into_iter().rev().map(Some);
            let slots = slots.chain(std::iter::repeat(None));
            let all = pods.into_iter().zip(slots);
            all.map(|(pod, slot)| (&device.instance, pod, slot))
        })
    }

    fn numbers_of(&self, pod: &PodKey) -> Vec<Number> {
        let pod = self.pods.get(pod).into_iter();
        let names = pod.flat_map(|pod| pod.allocated.values().flatten());
        let numbers = names.flat_map(|name| named(&self.by_name, name));
        numbers.copied().collect()
    }

    /// Holds back as many free slots of a device as there are running pods that have lost theirs.
    fn hold_back(&mut self, number: Number) {
        let Some(device) = self.device(number) else {
            return;
        };
        let short = self.without_slot(&device.instance).len();
        let mut free = free(&device.instance);
        free.truncate(free.len().saturating_sub(short));
        if short > 0 {
            self.short.insert(number);
        } else {
            self.short.remove(&number);
        }
        if let Some(Some(device)) = self.devices.get_mut(number) {
            device.free = free;
        }
    }

    /// Removes an Instance.
    pub fn remove(&mut self, key: &InstanceKey) {
        let Some(number) = self.by_key.remove(key) else {
            return;
        };
        self.reserve(key, Vec::new());
        self.by_name.remove(&(key.name.clone(), number));
        let Some(device) = self.devices.get_mut(number).and_then(Option::take) else {
            return;
        };
        let name = configuration_of(&device);
        for node in &device.nodes {
            self.leave(node, &name, number);
        }
        self.short.remove(&number);
        self.unused.push(number);
        let Some(spaces) = self.namespaces.get_mut(&name) else {
            return;
        };
        if let Some(count) = spaces.get_mut(&key.namespace) {
            *count = count.saturating_sub(1);
        }
        let before = spaces.len();
        spaces.retain(|_, count| *count > 0);
        let is_owner_new = spaces.len() < before;
        if spaces.is_empty() {
            self.namespaces.remove(&name);
        }
        if is_owner_new {
            self.name(Arc::clone(&self.names));
        }
    }

    /// Replaces the reservations of a device.
    fn reserve(&mut self, key: &InstanceKey, reserved: Vec<Reservation>) {
        for before in self.reserved.remove(key).into_iter().flatten() {
            for pod in [before.uid, before.pod.to_string()] {
                self.by_pod.remove(&(pod, key.clone()));
            }
        }
        for one in &reserved {
            for pod in [one.uid.clone(), one.pod.to_string()] {
                self.by_pod.insert((pod, key.clone()));
            }
        }
        if !reserved.is_empty() {
            self.reserved.insert(key.clone(), reserved);
        }
    }

    fn leave(&mut self, node: &str, name: &str, number: Number) {
        let Some(own) = self.by_node.get_mut(node) else {
            return;
        };
        if let Some(numbers) = own.get_mut(name) {
            numbers.retain(|other| *other != number);
        }
        own.retain(|_, numbers| !numbers.is_empty());
        if own.is_empty() {
            self.by_node.remove(node);
        }
    }

    /// Stores a Node, unless a newer version is known.
    pub fn put_node(&mut self, name: String, seen: NodeSeen) {
        let number = |seen: &NodeSeen| seen.version.parse::<u64>().unwrap_or(u64::MAX);
        let nodes = self.locks.get_or_insert_default();
        let before = nodes.get(&name);
        if before.is_none_or(|before| number(before) <= number(&seen)) {
            nodes.insert(name, seen);
        }
    }

    /// Stores the owners of Configuration names, and updates the slots that are held back.
    pub fn name(&mut self, names: Arc<ResourceNames>) {
        self.names = names;
        let given = self.given.iter();
        let numbers = given.flat_map(|(name, _)| named(&self.by_name, name));
        for number in numbers.copied().collect::<BTreeSet<_>>() {
            self.hold_back(number);
        }
    }

    /// Returns the namespace that owns the name of a Configuration: the one that has reserved it, else the only one with devices of it.
    pub fn owner(&self, configuration: &str) -> Option<&str> {
        if let Some(reservation) = self.names.get(configuration) {
            return Some(&reservation.namespace);
        }
        let mut spaces = self.namespaces.get(configuration)?.keys();
        let first = spaces.next()?;
        spaces.next().is_none().then_some(first)
    }

    /// Returns true if an Instance of that name exists in any namespace.
    pub fn has_named(&self, name: &str) -> bool {
        named(&self.by_name, name).next().is_some()
    }

    /// Returns the number of the device of an Instance.
    pub fn number(&self, key: &InstanceKey) -> Option<Number> {
        self.by_key.get(key).copied()
    }

    /// Returns the device of an Instance.
    pub fn get(&self, key: &InstanceKey) -> Option<&Device> {
        self.device(*self.by_key.get(key)?)
    }

    /// Returns the device with a number.
    pub fn device(&self, number: Number) -> Option<&Device> {
        self.devices.get(number)?.as_ref()
    }

    /// Returns the devices of a Configuration, given by name and namespace, that are usable on a node, in the order of their Instances' names.
    pub fn of_node(
        &self,
        node: &str,
        (name, space): (&str, &str),
    ) -> impl Iterator<Item = (Number, &Device)> {
        let numbers = self.by_node.get(node).and_then(|own| own.get(name));
        let numbers = numbers.into_iter().flatten();
        let devices = numbers.filter_map(|number| Some((*number, self.device(*number)?)));
        devices.filter(move |(_, device)| device.instance.metadata.namespace == space)
    }

    /// Returns the nodes on which at least one device is usable.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        self.by_node.keys()
    }

    /// Returns true once Instances and pods were listed. With only one of them, devices that pods have could be given away.
    pub fn is_read(&self) -> bool {
        self.has_instances && self.has_pods
    }

    /// Returns the reservations of a device.
    pub fn reserved_of(&self, key: &InstanceKey) -> &[Reservation] {
        self.reserved.get(key).map_or(&[], Vec::as_slice)
    }

    /// Returns the reservations for the pod with a uid.
    pub fn reserved_for(&self, uid: &str) -> Vec<&Reservation> {
        let keys = named(&self.by_pod, uid);
        let all = keys.flat_map(|key| self.reserved_of(key));
        all.filter(|one| one.uid == uid).collect()
    }

    /// Returns the reservations for pods of a name.
    pub fn reserved_for_name(&self, pod: &PodKey) -> Vec<&Reservation> {
        let name = pod.to_string();
        let keys = named(&self.by_pod, &name);
        let all = keys.flat_map(|key| self.reserved_of(key));
        all.filter(|one| one.pod == *pod).collect()
    }

    /// Returns true if the pod of a reservation is bound to its node and has not ended.
    pub fn is_of_bound_pod(&self, one: &Reservation) -> bool {
        let pod = self.pods.get(&one.pod);
        pod.is_some_and(|pod| pod.uid == one.uid && pod.node == one.node && !pod.has_ended)
    }

    /// Returns all reservations.
    pub fn reserved(&self) -> impl Iterator<Item = &Reservation> {
        self.reserved.values().flatten()
    }
}

/// Removes from an Instance the fields that only describe the device: with many devices, they take most of the memory.
fn slim(instance: Arc<Instance>) -> Arc<Instance> {
    let mut slim = Arc::unwrap_or_clone(instance);
    slim.metadata.labels = BTreeMap::new();
    slim.metadata.annotations = BTreeMap::new();
    slim.metadata.owner_references = Vec::new();
    slim.spec.cdi_name = String::new();
    slim.spec.broker_properties = BTreeMap::new();
    slim.spec.nodes = Vec::new();
    slim.spec.leafhost = slim.spec.leafhost.map(|leafhost| Leafhost {
        reserved: leafhost.reserved,
        ..Leafhost::default()
    });
    slim.status = InstanceStatus::default();
    Arc::new(slim)
}

fn configuration_of(device: &Device) -> String {
    device.instance.spec.configuration_name.clone()
}

/// Returns the unused slots of an Instance; none if it is being deleted.
fn free(instance: &Instance) -> Vec<String> {
    if instance.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    free_slots(instance, &BTreeSet::new())
}

/// Returns the nodes on which the device of an Instance is usable: present and not reported unhealthy.
fn nodes(instance: &Instance) -> BTreeSet<String> {
    let sees_well = |node: &&String| {
        instance.status.nodes.get(*node).is_some_and(|status| {
            let works = !matches!(status.health, Health::Unhealthy(_));
            works && status.missing_since.is_none()
        })
    };
    instance
        .spec
        .nodes
        .iter()
        .filter(sees_well)
        .cloned()
        .collect()
}

fn reservations(instance: &Instance) -> Vec<Reservation> {
    let usages = instance.spec.device_usage.iter();
    let reserved = usages.filter_map(|(slot, usage)| {
        let Ok(DeviceUsage::Pod { uid, node }) = usage.parse() else {
            return None;
        };
        let pod = instance.reserved(slot).map(|reserved| &reserved.pod);
        let status = instance.status.nodes.get(&node);
        // The status may still name the pod that had the slot before.
        let holder = status.and_then(|status| status.holders.get(slot));
        Some(Reservation {
            device: instance.key(),
            slot: slot.clone(),
            uid,
            is_held: holder.is_some() && holder == pod,
            pod: pod.and_then(|pod| PodKey::read(pod)).unwrap_or_default(),
            node,
        })
    });
    reserved.collect()
}
