//! Computes the CDI specs. Pure.

use std::collections::{BTreeMap, BTreeSet};

use leafhost_cdi::{ContainerEdits, Device as CdiDevice, DeviceNode, Mount, Spec, class_problem};
use leafhost_core::device::{Device, DeviceKey};
use leafhost_core::device_view::{ConfigurationDevices, DeviceSnapshot, DeviceView};
use leafhost_core::edits::Edits;
use leafhost_core::names::{ConfigurationKey, GROUP};
use leafhost_core::ports::InstanceSet;
use leafhost_core::problem::Problem;
use leafhost_core::resource_names::NameOwners;

/// Name of the CDI device with all devices of its Configuration.
pub const ALL: &str = "all";

/// Maximum number of bytes of a spec, estimated before it is written: runtimes read all specs when a container starts.
const MAX_SPEC: usize = 32 << 20;

/// Specs to write.
#[derive(Debug, Default)]
pub struct SpecSet<'a> {
    /// Offers by class.
    pub offers: BTreeMap<String, Offer<'a>>,
    /// Problems that keep a Configuration from being offered.
    pub problems: Vec<Problem>,
}

/// Configuration whose devices are offered. Its spec is built on demand, since it may be large.
#[derive(Debug)]
pub struct Offer<'a> {
    /// Key of the Configuration.
    pub key: &'a ConfigurationKey,
    view: &'a ConfigurationDevices,
    hashes: Hashes<'a>,
}

/// Returns the CDI kind of a class.
pub fn kind(class: &str) -> String {
    format!("{GROUP}/{class}")
}

/// Returns the specs to write.
pub fn wanted<'a>(
    node: &str,
    devices: &'a DeviceSnapshot,
    instances: &'a InstanceSet,
) -> SpecSet<'a> {
    let mut wanted = SpecSet::default();
    let mut held = held(node, instances);
    // The owner of the name gets the class if two Configurations have it: a newer one must not add its device to containers of the other.
    let mut configurations: Vec<_> = devices
        .configurations
        .iter()
        .map(|(key, view)| {
            let created = view.configured.configuration.seniority();
            let since = held.get(key).and_then(|held| held.since);
            let age = (created.is_none(), created, since.is_none(), since, key);
            (age, view)
        })
        .collect();
    configurations.sort_by_key(|(age, _)| *age);
    let aged = configurations
        .iter()
        .filter(|((ageless, ..), _)| !ageless)
        .map(|((.., key), _)| *key);
    let names = NameOwners::new(&devices.names, aged);
    for ((.., key), view) in configurations {
        let class = key.name();
        let taken = names.taken_from(key.namespace(), class);
        let first = || wanted.offers.get(class).map(|first| first.key.to_string());
        if class_problem(class).is_some() {
            wanted.problems.push(Problem::InvalidCdiClass {
                configuration: key.clone(),
            });
        } else if let Some(owner) = taken.map(|owner| owner.to_string()).or_else(first) {
            wanted.problems.push(Problem::NameTaken {
                configuration: key.clone(),
                owner,
                consumer: "container runtimes",
            });
        } else {
            let ConfigurationInstances { hashes, since: _ } = held.remove(key).unwrap_or_default();
            let offer = Offer { key, view, hashes };
            wanted.offers.insert(class.to_owned(), offer);
        }
    }
    wanted
}

type Hashes<'a> = BTreeMap<DeviceKey, &'a str>;

/// Instances of this node for one Configuration.
#[derive(Debug, Default)]
struct ConfigurationInstances<'a> {
    /// Creation time of the oldest Instance.
    since: Option<&'a str>,
    /// Hashes in the names of Instances, by device.
    hashes: Hashes<'a>,
}

fn held<'a>(
    node: &str,
    instances: &'a InstanceSet,
) -> BTreeMap<ConfigurationKey, ConfigurationInstances<'a>> {
    let mut all: BTreeMap<ConfigurationKey, ConfigurationInstances<'a>> = BTreeMap::new();
    for instance in instances.instances.values() {
        let (key, device) = (instance.configuration(), instance.device_key());
        if let (Some(key), Some(device), Some(hash)) = (key, device, instance.hash())
            && instance.is_seen_by(node)
        {
            let held = all.entry(key).or_default();
            held.hashes.insert(device, hash);
            let created = instance.metadata.creation_timestamp.as_deref();
            held.since = held.since.into_iter().chain(created).min();
        }
    }
    all
}

impl Offer<'_> {
    /// Returns the devices that have an Instance, with the hash in its name, ordered by id.
    fn devices(&self) -> impl Iterator<Item = (&str, &DeviceView)> {
        let devices = self.view.devices.iter();
        devices.filter_map(|(key, device)| Some((*self.hashes.get(key)?, device)))
    }

    /// Returns true if the offer has no device.
    pub fn is_empty(&self) -> bool {
        self.devices().next().is_none()
    }

    /// Returns true if the offer has a device whose entry is only in the spec that was written before.
    pub fn needs_published(&self) -> bool {
        self.devices().any(|(_, device)| device.device.is_none())
    }

    /// Builds the spec from the devices and the spec that was written before; `None` without devices. Also returns a problem if devices are
    /// left out because the spec would be too large.
    pub fn spec(&self, class: &str, published: Option<&Spec>) -> (Option<Spec>, Option<Problem>) {
        let own = &self.view.configured.configuration.broker_properties;
        let mut all = All::default();
        let mut devices = Vec::new();
        let (mut size, mut over) = (0, 0);
        // Ordered by id; the first device sets the variables without a suffix in `all`.
        for (hash, device) in self.devices() {
            // After the first device without room all are left out: which ones are included must not depend on the sizes that follow.
            if over > 0 {
                over += 1;
                continue;
            }
            let edits = if let Some(device) = &device.device {
                edits(class, hash, device, own)
            } else {
                let entries = published.map(|spec| &spec.devices).into_iter().flatten();
                match entries.into_iter().find(|entry| entry.name == *hash) {
                    Some(entry) => entry.container_edits.clone(),
                    None => continue,
                }
            };
            let device = CdiDevice {
                name: hash.to_owned(),
                container_edits: edits,
            };
            // Once for itself and once for its part of `all`.
            size += 2 * device.size();
            if size > MAX_SPEC {
                over = 1;
                continue;
            }
            all.add(&device.container_edits);
            devices.push(device);
        }
        let problem = (over > 0).then(|| Problem::CdiSpecTooLarge {
            configuration: self.key.clone(),
            devices: over,
            mebibytes: MAX_SPEC >> 20,
        });
        if devices.is_empty() {
            return (None, problem);
        }
        devices.sort_by(|one, two| one.name.cmp(&two.name));
        devices.push(CdiDevice {
            name: ALL.to_owned(),
            container_edits: all.edits,
        });
        let spec = Spec {
            kind: kind(class),
            devices,
            container_edits: ContainerEdits::default(),
        };
        (Some(spec), problem)
    }
}

/// Returns the edits of a container with one device.
fn edits(
    class: &str,
    hash: &str,
    device: &Device,
    own: &BTreeMap<String, String>,
) -> ContainerEdits {
    let suffix = hash.to_uppercase();
    let name = format!("LEAFHOST_DEVICE_{suffix}={GROUP}/{class}={hash}");
    container_edits(&Edits::of(hash, device, own), name)
}

/// Converts edits to those of a spec. Runtimes reject a device without edits, which therefore gets the variable `name`.
pub fn container_edits(edits: &Edits, name: String) -> ContainerEdits {
    let variables = edits.env.iter();
    let nodes = edits.nodes.values();
    let mounts = edits.mounts.values();
    let mut container = ContainerEdits {
        env: variables
            .map(|(name, value)| format!("{name}={value}"))
            .collect(),
        device_nodes: nodes
            .map(|node| DeviceNode::new(&node.container_path, &node.host_path, &node.permissions))
            .collect(),
        mounts: mounts
            .map(|mount| Mount::bind(&mount.container_path, &mount.host_path, mount.read_only))
            .collect(),
    };
    if container.is_empty() {
        container.env.push(name);
    }
    container
}

/// Edits of all devices together, with indexes: a Configuration may have thousands of devices.
#[derive(Default)]
struct All {
    edits: ContainerEdits,
    variables: BTreeSet<String>,
    /// Index in the edits by the node's path in the container.
    nodes: BTreeMap<String, usize>,
    mounts: BTreeSet<String>,
}

impl All {
    /// Adds the edits that are not present yet: variables by name, nodes and mounts by their path in the container.
    fn add(&mut self, edits: &ContainerEdits) {
        for variable in &edits.env {
            let name = variable.split('=').next().unwrap_or_default();
            if self.variables.insert(name.to_owned()) {
                self.edits.env.push(variable.clone());
            }
        }
        for node in &edits.device_nodes {
            let all = &mut self.edits.device_nodes;
            let held = self.nodes.get(&node.path);
            match held.and_then(|&index| all.get_mut(index)) {
                None => {
                    self.nodes.insert(node.path.clone(), all.len());
                    all.push(node.clone());
                }
                Some(held) if held.host_path == node.host_path => {
                    held.permissions =
                        union(held.permissions.as_deref(), node.permissions.as_deref());
                }
                Some(_) => {}
            }
        }
        for mount in &edits.mounts {
            if self.mounts.insert(mount.container_path.clone()) {
                self.edits.mounts.push(mount.clone());
            }
        }
    }
}

/// Returns the permissions of both; `None` means all.
fn union(one: Option<&str>, two: Option<&str>) -> Option<String> {
    Some(leafhost_core::edits::union(one?, two?))
}
