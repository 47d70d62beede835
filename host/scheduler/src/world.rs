//! The devices and pods of the cluster as they are seen now.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use leafhost_core::device::Health;
use leafhost_core::free_slots::free_slots;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::instance_view::version;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::resource_names::ResourceNames;
use leafhost_core::scheduling::{Pod, PodKey};
use leafhost_core::slot::DeviceUsage;
use leafhost_select::Facts;

/// Numbers a device for as long as it is known.
pub type Number = usize;

/// Is a device.
#[derive(Debug)]
pub struct Device {
    /// The Instance.
    pub instance: Arc<Instance>,
    /// What expressions find of it.
    pub facts: Facts,
    /// Is another number whenever the facts are others, and never 0.
    pub version: u64,
    /// The nodes that see it well.
    pub nodes: BTreeSet<String>,
    /// The slots that nobody has.
    pub free: Vec<String>,
}

/// Is a slot that is reserved for a pod.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reservation {
    /// The device.
    pub device: InstanceKey,
    /// The slot.
    pub slot: String,
    /// The uid of the pod.
    pub uid: String,
    /// The node.
    pub node: String,
    /// `namespace/name` of the pod.
    pub pod: String,
    /// True if a container of the node was seen to have it: then the agent there knows when it is over.
    pub is_held: bool,
}

/// Maps the name of a Configuration and its namespace to devices.
type Owned = BTreeMap<String, BTreeMap<String, BTreeSet<Number>>>;

/// Is what is seen.
#[derive(Debug, Default)]
pub struct World {
    devices: Vec<Option<Device>>,
    unused: Vec<Number>,
    by_key: BTreeMap<InstanceKey, Number>,
    /// By node, and by the name and the namespace of a Configuration.
    by_node: HashMap<String, Owned>,
    /// Counts the devices of a Configuration's name, by namespace.
    namespaces: BTreeMap<String, BTreeMap<String, usize>>,
    names: Arc<ResourceNames>,
    /// Counts the versions of facts.
    versions: u64,
    reserved: BTreeMap<InstanceKey, Vec<Reservation>>,
    /// The pods that ask for devices.
    pub pods: BTreeMap<PodKey, Pod>,
    /// True once the Instances were listed.
    pub has_instances: bool,
    /// True once the pods were listed.
    pub has_pods: bool,
}

impl World {
    /// Takes the Instances that were listed, whatever was known of them: a database that was restored is older. What is newer follows.
    pub fn list(&mut self, all: Vec<Arc<Instance>>) {
        let listed: BTreeSet<InstanceKey> = all.iter().map(|one| one.key()).collect();
        let gone = self.by_key.keys().filter(|key| !listed.contains(*key));
        for key in gone.cloned().collect::<Vec<_>>() {
            self.remove(&key);
        }
        for instance in all {
            if let Some(number) = self.by_key.get(&instance.key()) {
                let device = self.devices.get_mut(*number).and_then(Option::as_mut);
                if let Some(device) = device {
                    let before = Arc::make_mut(&mut device.instance);
                    before.metadata.resource_version.clear();
                }
            }
            self.put(instance);
        }
        self.has_instances = true;
    }

    /// Takes an Instance as it is now. Returns true if it may serve a pod better than before.
    pub fn put(&mut self, instance: Arc<Instance>) -> bool {
        let key = instance.key();
        let before = self.get(&key);
        if before.is_some_and(|before| version(&before.instance) > version(&instance)) {
            return false;
        }
        let configuration = &instance.spec.configuration_name;
        let Ok(owner) = ConfigurationKey::new(&key.namespace, configuration) else {
            return false;
        };
        let is_same = before.is_some_and(|before| {
            before.instance.spec.leafhost == instance.spec.leafhost
                && before.instance.spec.capacity == instance.spec.capacity
        });
        let (old_nodes, old_free) = before.map_or((BTreeSet::new(), 0), |before| {
            (before.nodes.clone(), before.free.len())
        });
        let mut device = Device {
            facts: Facts::default(),
            version: 0,
            nodes: nodes(&instance),
            free: if instance.metadata.deletion_timestamp.is_some() {
                Vec::new()
            } else {
                free_slots(&instance, &BTreeSet::new())
            },
            instance,
        };
        let reserved = reservations(&device.instance);
        if reserved.is_empty() {
            self.reserved.remove(&key);
        } else {
            self.reserved.insert(key.clone(), reserved);
        }
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
            self.by_key.insert(key, number);
            number
        };
        let (name, space) = (configuration_of(&device), owner.namespace());
        for node in old_nodes.difference(&device.nodes) {
            self.leave(node, (&name, space), number);
        }
        for node in device.nodes.difference(&old_nodes) {
            let own = self.by_node.entry(node.clone()).or_default();
            let own = own.entry(name.clone()).or_default();
            own.entry(space.to_owned()).or_default().insert(number);
        }
        let is_better = device.free.len() > old_free
            || !device.free.is_empty()
                && (!is_same || device.nodes.iter().any(|node| !old_nodes.contains(node)));
        if let Some(place) = self.devices.get_mut(number) {
            (device.facts, device.version) = match place.take() {
                Some(before) if is_same => (before.facts, before.version),
                _ => {
                    self.versions += 1;
                    (Facts::of(&owner, &device.instance), self.versions)
                }
            };
            *place = Some(device);
        }
        is_better
    }

    /// Takes that an Instance is gone.
    pub fn remove(&mut self, key: &InstanceKey) {
        let Some(number) = self.by_key.remove(key) else {
            return;
        };
        self.reserved.remove(key);
        let Some(device) = self.devices.get_mut(number).and_then(Option::take) else {
            return;
        };
        let name = configuration_of(&device);
        for node in &device.nodes {
            self.leave(node, (&name, &key.namespace), number);
        }
        self.unused.push(number);
        if let Some(spaces) = self.namespaces.get_mut(&name) {
            if let Some(count) = spaces.get_mut(&key.namespace) {
                *count = count.saturating_sub(1);
            }
            spaces.retain(|_, count| *count > 0);
        }
        self.namespaces.retain(|_, spaces| !spaces.is_empty());
    }

    fn leave(&mut self, node: &str, (name, space): (&str, &str), number: Number) {
        let Some(own) = self.by_node.get_mut(node) else {
            return;
        };
        if let Some(spaces) = own.get_mut(name) {
            if let Some(numbers) = spaces.get_mut(space) {
                numbers.remove(&number);
            }
            spaces.retain(|_, numbers| !numbers.is_empty());
        }
        own.retain(|_, spaces| !spaces.is_empty());
        if own.is_empty() {
            self.by_node.remove(node);
        }
    }

    /// Takes which namespaces have which names.
    pub fn name(&mut self, names: Arc<ResourceNames>) {
        self.names = names;
    }

    /// Returns the namespace that has the name of a Configuration: the one that has reserved it, else the only one with devices of it.
    pub fn owner(&self, configuration: &str) -> Option<&str> {
        if let Some(reservation) = self.names.get(configuration) {
            return Some(&reservation.namespace);
        }
        let mut spaces = self.namespaces.get(configuration)?.keys();
        let first = spaces.next()?;
        spaces.next().is_none().then_some(first)
    }

    /// Returns the device of an Instance.
    pub fn get(&self, key: &InstanceKey) -> Option<&Device> {
        self.device(*self.by_key.get(key)?)
    }

    /// Returns a device.
    pub fn device(&self, number: Number) -> Option<&Device> {
        self.devices.get(number)?.as_ref()
    }

    /// Returns the devices of a Configuration, by its name and namespace, that a node sees well.
    pub fn of_node(
        &self,
        node: &str,
        (name, space): (&str, &str),
    ) -> impl Iterator<Item = (Number, &Device)> {
        let own = self.by_node.get(node).and_then(|own| own.get(name));
        let numbers = own.and_then(|spaces| spaces.get(space));
        let numbers = numbers.into_iter().flatten();
        numbers.filter_map(|number| Some((*number, self.device(*number)?)))
    }

    /// Returns the nodes that see a device.
    pub fn nodes(&self) -> impl Iterator<Item = &String> {
        self.by_node.keys()
    }

    /// Returns what is reserved.
    pub fn reserved(&self) -> impl Iterator<Item = &Reservation> {
        self.reserved.values().flatten()
    }
}

fn configuration_of(device: &Device) -> String {
    device.instance.spec.configuration_name.clone()
}

/// Returns the nodes that see the device of an Instance well.
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
        // What is said there may be of the pod that had it before.
        let holder = status.and_then(|status| status.holders.get(slot));
        Some(Reservation {
            device: instance.key(),
            slot: slot.clone(),
            uid,
            is_held: holder.is_some() && holder == pod,
            pod: pod.cloned().unwrap_or_default(),
            node,
        })
    });
    reserved.collect()
}
