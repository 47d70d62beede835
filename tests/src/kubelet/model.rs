//! What the kubelet's device manager keeps in memory, and how it decides. Pure; the order of its checks and the holes in
//! them are those of Kubernetes 1.35 to 1.37, pkg/kubelet/cm/devicemanager.

use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use leafhost_kubelet::proto::device_plugin::{ContainerAllocateResponse, Device};
use tokio::time::Instant;

use super::pods::Kind;

#[cfg(test)]
mod tests;

/// How long a resource whose plugin is gone stays in the node's capacity.
pub const GRACE: Duration = Duration::from_mins(5);
/// The NUMA node of a device that names none.
const NO_NUMA: i64 = -1;

/// Device ids.
pub type Ids = BTreeSet<String>;

/// What a container was given of one resource.
#[derive(Debug, Clone, PartialEq)]
pub struct Given {
    /// The ids by NUMA node, -1 for none.
    pub ids: BTreeMap<i64, Vec<String>>,
    /// The plugin's answer.
    pub answer: ContainerAllocateResponse,
}

impl Given {
    /// The ids.
    pub fn ids(&self) -> Ids {
        self.ids.values().flatten().cloned().collect()
    }
}

/// Container → resource → what it was given.
pub type PodDevices = BTreeMap<String, BTreeMap<String, Given>>;

/// Why the kubelet does not admit a container.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// No plugin has registered the resource since the kubelet started.
    #[error("no plugin has registered {0}")]
    Unregistered(String),
    /// Its devices are all unhealthy, or its plugin is gone.
    #[error("{0} has no healthy device")]
    NoneHealthy(String),
    /// What the container has already is unhealthy.
    #[error("a device of {0} that the container has is unhealthy")]
    HeldUnhealthy(String),
    /// Too few are free.
    #[error("{resource} has {available} free devices, {needed} are needed")]
    TooFew {
        /// The resource.
        resource: String,
        /// How many are needed.
        needed: usize,
        /// How many are free.
        available: usize,
    },
    /// The plugin's connection has ended.
    #[error("the plugin of {0} is stopped")]
    Stopped(String),
    /// The plugin answered with an error.
    #[error("{call}: {code:?}: {message}")]
    Plugin {
        /// Which call.
        call: &'static str,
        /// The code.
        code: tonic::Code,
        /// The message.
        message: String,
    },
    /// The real kubelet would have ended with a nil pointer here, and so has this one.
    #[error("the kubelet crashed: {0}")]
    Crashed(String),
    /// The kubelet was stopped meanwhile.
    #[error("the kubelet was stopped while {0} was under way")]
    Ended(&'static str),
    /// The test asked for what is not there.
    #[error("no {0}")]
    Absent(String),
}

/// What is to be done for one request of a container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// Nothing: it has what it needs, or runs.
    Nothing,
    /// Allocate these.
    Allocate(Ids),
    /// Choose more among the free ones, after the plugin was asked.
    Choose(Choice),
}

/// A choice to make.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Taken already: those of an init container.
    pub taken: Ids,
    /// The free ones.
    pub available: Ids,
    /// How many in all.
    pub required: usize,
}

/// Who asks for devices.
#[derive(Debug, Clone, Copy)]
pub struct Asking<'a> {
    /// The pod.
    pub uid: &'a str,
    /// The container.
    pub container: &'a str,
    /// The kubelet has just started, and the container runs.
    pub runs_already: bool,
}

#[derive(Debug, Default)]
struct Resource {
    /// Since when the plugin is gone.
    stopped: Option<Instant>,
    healthy: Ids,
    unhealthy: Ids,
}

/// The device manager's memory.
#[derive(Debug, Default)]
pub struct Model {
    resources: BTreeMap<String, Resource>,
    /// The last list, which outlives its plugin.
    lists: BTreeMap<String, BTreeMap<String, Device>>,
    allocated: BTreeMap<String, Ids>,
    given: BTreeMap<String, PodDevices>,
    reusable: Option<(String, BTreeMap<String, Ids>)>,
    /// In which order ids are picked, as the real one does in that of a map.
    pub seed: u64,
}

impl Model {
    /// After a start: what a checkpoint says, and its resources without a plugin.
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

    /// A plugin has connected. Its resource counts once the first list has come.
    pub fn connect(&mut self, resource: &str) {
        if let Some(known) = self.resources.get_mut(resource) {
            known.stopped = None;
        }
    }

    /// The connection of the resource's current plugin has ended.
    pub fn disconnect(&mut self, resource: &str, now: Instant) {
        let known = self.resources.entry(resource.to_owned()).or_default();
        let healthy = std::mem::take(&mut known.healthy);
        known.unhealthy.extend(healthy);
        known.stopped = Some(now);
    }

    /// A list has come, of the current plugin or an older one.
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

    /// What the node's status says, capacity and allocatable by resource. Drops resources whose grace is over; whether
    /// there was one.
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

    /// Forgets what pods have that are not `active`.
    pub fn sweep(&mut self, active: &BTreeSet<String>) {
        let before = self.given.len();
        self.given.retain(|uid, _| active.contains(uid));
        if self.given.len() < before {
            self.recount();
        }
    }

    /// Whether a plugin offers the resource or has offered it, so that the kubelet cares for it.
    pub fn is_known(&self, resource: &str) -> bool {
        self.resources.contains_key(resource) || self.allocated.contains_key(resource)
    }

    /// Whether the plugin is connected.
    pub fn is_connected(&self, resource: &str) -> bool {
        self.resources
            .get(resource)
            .is_some_and(|resource| resource.stopped.is_none())
    }

    /// The first half of an allocation.
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

    /// The choice, with what the plugin prefers.
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

    /// The plugin has refused: its devices are free again.
    pub fn fail(&mut self) {
        self.recount();
    }

    /// The plugin has answered. An id that is not in the list of this moment ends the kubelet.
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

    /// A container of the pod is about to be admitted: devices of other pods' init containers are not for reuse any more.
    pub fn turn_to(&mut self, uid: &str) {
        if self
            .reusable
            .as_ref()
            .is_none_or(|(before, _)| before != uid)
        {
            self.reusable = Some((uid.to_owned(), BTreeMap::new()));
        }
    }

    /// A container was admitted: what an ordinary init container has is for those after it, what others have is not.
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

    /// What a container has of a resource.
    pub fn given(&self, uid: &str, container: &str, resource: &str) -> Option<&Given> {
        self.given.get(uid)?.get(container)?.get(resource)
    }

    /// What all pods have.
    pub fn all_given(&self) -> &BTreeMap<String, PodDevices> {
        &self.given
    }

    /// The last list of a resource.
    pub fn listed(&self, resource: &str) -> BTreeMap<String, Device> {
        self.lists.get(resource).cloned().unwrap_or_default()
    }

    /// The resources and their healthy devices, as the checkpoint has them.
    pub fn registered(&self) -> BTreeMap<String, Vec<String>> {
        let healthy = |r: &Resource| r.healthy.iter().cloned().collect();
        let all = self.resources.iter();
        all.map(|(name, r)| (name.clone(), healthy(r))).collect()
    }
}
