//! Memory of the kubelet's device manager, and its decisions. Pure; the order of its checks and the gaps in them are those of Kubernetes 1.35 to
//! 1.37, pkg/kubelet/cm/devicemanager.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use leafhost_kubelet::proto::device_plugin::{ContainerAllocateResponse, Device};
use tokio::time::Instant;

use super::pods::Kind;

#[cfg(test)]
mod tests;

/// Time for which the resource of a stopped plugin stays in the node's capacity.
pub const GRACE: Duration = Duration::from_mins(5);
/// NUMA node of a device that names none.
const NO_NUMA: i64 = -1;

/// Set of device IDs.
pub type Ids = BTreeSet<String>;

/// Devices of one resource that a container was given.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// IDs by NUMA node, -1 for none.
    pub ids: BTreeMap<i64, Vec<String>>,
    /// Answer of the plugin.
    pub answer: ContainerAllocateResponse,
}

impl Given {
    /// Returns the IDs of all NUMA nodes.
    pub fn ids(&self) -> Ids {
        self.ids.values().flatten().cloned().collect()
    }
}

/// Map of container to resource to the devices it was given.
pub type PodDevices = BTreeMap<String, BTreeMap<String, Given>>;

/// Reason why the kubelet does not admit a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No plugin has registered the resource since the kubelet started.
    #[error("no plugin has registered {0}")]
    Unregistered(String),
    /// All devices of the resource are unhealthy, or its plugin is gone.
    #[error("{0} has no healthy device")]
    NoneHealthy(String),
    /// A device that the container already holds is unhealthy.
    #[error("a device of {0} that the container has is unhealthy")]
    HeldUnhealthy(String),
    /// Too few devices are free.
    #[error("{resource} has {available} free devices, {needed} are needed")]
    TooFew {
        /// Name of the resource.
        resource: String,
        /// Number of devices needed.
        needed: usize,
        /// Number of free devices.
        available: usize,
    },
    /// The plugin's connection has ended.
    #[error("the plugin of {0} is stopped")]
    Stopped(String),
    /// The plugin answered with an error.
    #[error("{call}: {code:?}: {message}")]
    Plugin {
        /// Name of the call.
        call: &'static str,
        /// Code of the error.
        code: tonic::Code,
        /// Message of the error.
        message: String,
    },
    /// The real kubelet would have ended here with a nil pointer dereference, and so does the stand-in.
    #[error("the kubelet crashed: {0}")]
    Crashed(String),
    /// The kubelet was stopped meanwhile.
    #[error("the kubelet was stopped while {0} was under way")]
    Ended(&'static str),
    /// The test asked for a pod or container that does not exist.
    #[error("no {0}")]
    Absent(String),
}

/// Next step for one request of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing to do: the container has what it needs, or it runs.
    Nothing,
    /// Allocate these devices.
    Allocate(Ids),
    /// Choose more of the free devices, after the plugin was asked for its preference.
    Choose(Choice),
}

/// Choice of devices to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Devices already chosen: those of an init container.
    pub taken: Ids,
    /// Free devices.
    pub available: Ids,
    /// Number of devices in total.
    pub required: usize,
}

/// Container that asks for devices.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// UID of the pod.
    pub uid: &'a str,
    /// Name of the container.
    pub container: &'a str,
    /// True if the kubelet has just started and the container runs.
    pub runs_already: bool,
}

#[derive(Debug, Default)]
struct Resource {
    /// Time at which the plugin stopped.
    stopped: Option<Instant>,
    healthy: Ids,
    unhealthy: Ids,
}

/// Memory of the device manager.
#[derive(Debug, Default)]
pub struct Model {
    resources: BTreeMap<String, Resource>,
    /// Last list of each resource; it outlives its plugin.
    lists: BTreeMap<String, BTreeMap<String, Device>>,
    allocated: BTreeMap<String, Ids>,
    given: BTreeMap<String, PodDevices>,
    reusable: Option<(String, BTreeMap<String, Ids>)>,
    /// Seed of the order in which IDs are picked; the real kubelet picks in the random order of a Go map.
    pub seed: u64,
}

impl Model {
    /// Creates the model after a start, from the checkpoint's devices and its resources, which have no plugin yet.
    pub fn restored(
        given: BTreeMap<String, PodDevices>,
        resources: impl IntoIterator<Item = String>,
        now: Instant,
    ) -> Self {
        let stopped = || Resource {
            stopped: Some(now),
            ..Resource::default()
        };
        let mut model = Self {
            resources: resources
                .into_iter()
                .map(|name| (name, stopped()))
                .collect(),
            given,
            ..Self::default()
        };
        model.recount();
        model
    }

    /// Connects a plugin. Its resource counts only after the first list.
    pub fn connect(&mut self, resource: &str) {
        if let Some(known) = self.resources.get_mut(resource) {
            known.stopped = None;
        }
    }

    /// Disconnects the current plugin of the resource: all devices become unhealthy.
    pub fn disconnect(&mut self, resource: &str, now: Instant) {
        let known = self.resources.entry(resource.to_owned()).or_default();
        let healthy = std::mem::take(&mut known.healthy);
        known.unhealthy.extend(healthy);
        known.stopped = Some(now);
    }

    /// Stores a list of the current plugin or of an older one.
    pub fn list(&mut self, resource: &str, devices: &[Device]) {
        let known = self.resources.entry(resource.to_owned()).or_default();
        let (healthy, unhealthy) = devices
            .iter()
            .partition::<Vec<_>, _>(|device| device.health == "Healthy");
        let ids = |devices: Vec<&Device>| devices.into_iter().map(|d| d.id.clone()).collect();
        (known.healthy, known.unhealthy) = (ids(healthy), ids(unhealthy));
        let list = devices.iter().map(|d| (d.id.clone(), d.clone())).collect();
        self.lists.insert(resource.to_owned(), list);
    }

    /// Returns capacity and allocatable by resource for the node's status. Drops resources whose grace is over and returns true if there was one.
    pub fn capacity(&mut self, now: Instant) -> (BTreeMap<String, (usize, usize)>, bool) {
        let before = self.resources.len();
        self.resources.retain(|_, resource| {
            resource
                .stopped
                .is_none_or(|since| now.duration_since(since) <= GRACE)
        });
        let count = |r: &Resource| (r.healthy.len() + r.unhealthy.len(), r.healthy.len());
        let counts = self.resources.iter().map(|(n, r)| (n.clone(), count(r)));
        (counts.collect(), self.resources.len() < before)
    }

    /// Frees the devices of pods that are not `active`.
    pub fn sweep(&mut self, active: &BTreeSet<String>) {
        let before = self.given.len();
        self.given.retain(|uid, _| active.contains(uid));
        if self.given.len() < before {
            self.recount();
        }
    }

    /// Returns true if a plugin offers the resource or has offered it, so that the device manager handles it.
    pub fn is_known(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.allocated.contains_key(resource)
    }

    /// Returns true if the plugin of the resource is connected.
    pub fn is_connected(&self, resource: &str) -> bool {
        self.resources
            .get(resource)
            .is_some_and(|resource| resource.stopped.is_none())
    }

    /// Begins an allocation: returns the next step, or the reason to refuse.
    pub fn begin(
        &mut self,
        asking: Asking<'_>,
        resource: &str,
        required: usize,
    ) -> Result<Step, Refusal> {
        let held = self
            .given(asking.uid, asking.container, resource)
            .map(Given::ids)
            .unwrap_or_default();
        if asking.runs_already {
            return Ok(Step::Nothing);
        }
        let known = self
            .resources
            .get(resource)
            .ok_or_else(|| Refusal::Unregistered(resource.to_owned()))?;
        if known.healthy.is_empty() {
            return Err(Refusal::NoneHealthy(resource.to_owned()));
        }
        if !known.healthy.is_superset(&held) {
            return Err(Refusal::HeldUnhealthy(resource.to_owned()));
        }
        let needed = required.saturating_sub(held.len());
        if needed == 0 {
            return Ok(Step::Nothing);
        }
        let healthy = known.healthy.clone();
        let reusable = self
            .reusable
            .as_ref()
            .filter(|(uid, _)| uid == asking.uid)
            .and_then(|(_, ids)| ids.get(resource))
            .cloned()
            .unwrap_or_default();
        let mut taken = Ids::new();
        self.take(resource, &reusable, &mut taken, needed);
        if taken.len() == needed {
            return Ok(Step::Allocate(taken));
        }
        let in_use = self.allocated.get(resource).cloned().unwrap_or_default();
        let available: Ids = healthy.difference(&in_use).cloned().collect();
        let needed = needed - taken.len();
        if available.len() < needed {
            return Err(Refusal::TooFew {
                resource: resource.to_owned(),
                needed,
                available: available.len(),
            });
        }
        Ok(Step::Choose(Choice {
            taken,
            available,
            required,
        }))
    }

    /// Completes a choice with the devices that the plugin prefers.
    pub fn choose(&mut self, resource: &str, choice: Choice, preferred: &Ids) -> Ids {
        let Choice {
            mut taken,
            available,
            required,
        } = choice;
        let preferred: Ids = preferred.intersection(&available).cloned().collect();
        self.take(resource, &preferred, &mut taken, required);
        self.take(resource, &available, &mut taken, required);
        taken
    }

    fn take(&mut self, resource: &str, from: &Ids, taken: &mut Ids, until: usize) {
        let mut order: Vec<&String> = from.difference(taken).collect();
        let seed = self.seed;
        order.sort_by_key(|id| {
            let mut hasher = DefaultHasher::new();
            (seed, id).hash(&mut hasher);
            hasher.finish()
        });
        let missing = until.saturating_sub(taken.len());
        let more: Ids = order.into_iter().take(missing).cloned().collect();
        let allocated = self.allocated.entry(resource.to_owned()).or_default();
        allocated.extend(more.iter().cloned());
        taken.extend(more);
    }

    /// Frees the devices of an allocation that the plugin refused.
    pub fn fail(&mut self) {
        self.recount();
    }

    /// Records the plugin's answer. An ID that is not in the current list crashes the kubelet.
    pub fn finish(
        &mut self,
        asking: Asking<'_>,
        resource: &str,
        ids: &Ids,
        answer: ContainerAllocateResponse,
    ) -> Result<(), Refusal> {
        let list = self.lists.entry(resource.to_owned()).or_default();
        let mut by_numa: BTreeMap<i64, Vec<String>> = BTreeMap::new();
        for id in ids {
            let Some(device) = list.get(id) else {
                return Err(Refusal::Crashed(format!(
                    "{id} of {resource} was allocated and is not listed when the answer comes"
                )));
            };
            let topology = device.topology.as_ref();
            let nodes = topology.map(|topology| topology.nodes.iter().map(|node| node.id));
            let mut nodes: Vec<i64> = nodes.into_iter().flatten().collect();
            if nodes.is_empty() {
                nodes.push(NO_NUMA);
            }
            for node in nodes {
                by_numa.entry(node).or_default().push(id.clone());
            }
        }
        let pod = self.given.entry(asking.uid.to_owned()).or_default();
        let given = Given {
            ids: by_numa,
            answer,
        };
        pod.entry(asking.container.to_owned())
            .or_default()
            .insert(resource.to_owned(), given);
        Ok(())
    }

    /// Begins the admission of a pod's container; devices of other pods' init containers can no longer be reused.
    pub fn turn_to(&mut self, uid: &str) {
        if self
            .reusable
            .as_ref()
            .is_none_or(|(before, _)| before != uid)
        {
            self.reusable = Some((uid.to_owned(), BTreeMap::new()));
        }
    }

    /// Records an admitted container: later containers may reuse the devices of an ordinary init container, but of no other one.
    pub fn admitted(&mut self, uid: &str, container: &str, kind: Kind) {
        let has: Vec<(String, Ids)> = self
            .given
            .get(uid)
            .and_then(|pod| pod.get(container))
            .into_iter()
            .flatten()
            .map(|(resource, given)| (resource.clone(), given.ids()))
            .collect();
        let Some((_, reusable)) = self.reusable.as_mut().filter(|(pod, _)| pod == uid) else {
            return;
        };
        for (resource, ids) in has {
            let reusable = reusable.entry(resource).or_default();
            if kind == Kind::Init {
                reusable.extend(ids);
            } else {
                reusable.retain(|id| !ids.contains(id));
            }
        }
    }

    fn recount(&mut self) {
        self.allocated = BTreeMap::new();
        for (resource, given) in self.given.values().flat_map(BTreeMap::values).flatten() {
            let ids = self.allocated.entry(resource.clone()).or_default();
            ids.extend(given.ids());
        }
    }

    /// Returns the devices of a resource that a container was given.
    pub fn given(&self, uid: &str, container: &str, resource: &str) -> Option<&Given> {
        self.given.get(uid)?.get(container)?.get(resource)
    }

    /// Returns the devices of all pods.
    pub fn all_given(&self) -> &BTreeMap<String, PodDevices> {
        &self.given
    }

    /// Returns the last list of a resource.
    pub fn listed(&self, resource: &str) -> BTreeMap<String, Device> {
        self.lists.get(resource).cloned().unwrap_or_default()
    }

    /// Returns the resources and their healthy devices, as the checkpoint has them.
    pub fn registered(&self) -> BTreeMap<String, Vec<String>> {
        let healthy = |r: &Resource| r.healthy.iter().cloned().collect();
        let all = self.resources.iter();
        all.map(|(name, r)| (name.clone(), healthy(r))).collect()
    }
}
