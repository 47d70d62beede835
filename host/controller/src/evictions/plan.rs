//! Finds the pods whose device is gone, and those of them that may be evicted. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use leafhost_core::cluster::{NodeSet, PodState};
use leafhost_core::instance::InstanceKey;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::scheduling::PodKey;
use leafhost_core::status_store::{ConfigurationStates, ReportSet};
use tokio::time::Instant;

use crate::fold::{is_blocked, is_ready};

/// Time between the loss of a device and the eviction of its pods. An Instance that was deleted by mistake is back by then.
pub const WAIT: Duration = Duration::from_secs(10);
/// Precision of the creation timestamps of the API server.
const SECOND: SignedDuration = SignedDuration::from_secs(1);

/// State of the cluster that shows which devices are gone.
pub struct World<'a> {
    pub nodes: &'a NodeSet,
    pub configurations: &'a ConfigurationStates,
    pub reports: &'a ReportSet,
    pub instances: &'a InstanceSet,
}

/// Use of a device by a pod, as the Instance has shown it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Use {
    instance: InstanceKey,
    node: String,
    pod: PodKey,
}

/// Configuration of a device, with its uid.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Owner {
    configuration: ConfigurationKey,
    uid: String,
}

/// Loss of a device that a pod has used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// Configuration of the device.
    pub configuration: ConfigurationKey,
    /// Instance of the device.
    pub instance: InstanceKey,
    /// Node of the pod.
    pub node: String,
    /// Time of the loss: a pod that was created later has never used the device.
    pub since: Timestamp,
}

/// Uses of devices, and those of them whose device is gone.
#[derive(Debug, Default)]
pub struct Losses {
    held: BTreeMap<Use, Owner>,
    /// Uses with the time of their loss, and the `Instant` since which the loss is certain.
    lost: BTreeMap<Use, (Owner, Timestamp, Option<Instant>)>,
}

impl World<'_> {
    /// Returns true if the node of a use sees the device.
    fn is_seen(&self, one: &Use) -> bool {
        let instance = self.instances.instances.get(&one.instance);
        instance.is_some_and(|instance| instance.is_seen_by(&one.node))
    }

    /// Returns true if the Configuration still asks for the restart of its pods.
    fn restarts(&self, owner: &Owner) -> bool {
        let state = self.configurations.configurations.get(&owner.configuration);
        state.is_some_and(|state| {
            state.uid == owner.uid && state.restarts_pods && !state.is_deleting
        })
    }

    /// Returns true if the node is Ready and its handler answers, so that a device that the node does not see is gone. A handler that fails
    /// or is missing loses its devices, too, although they may work.
    fn is_certain(&self, node: &str, owner: &Owner) -> bool {
        let state = self.configurations.configurations.get(&owner.configuration);
        let report = state.and_then(|state| {
            let key = (node.to_owned(), state.handler.clone());
            let report = self.reports.handlers.get(&key)?;
            report.configurations.get(&owner.configuration)
        });
        is_ready(self.nodes, node) && report.is_some_and(|reported| !is_blocked(reported))
    }

    /// Returns the uses of devices whose Configuration asks for the restart of its pods.
    fn uses(&self) -> BTreeMap<Use, Owner> {
        let mut all = BTreeMap::new();
        for (key, instance) in &self.instances.instances {
            let Some(configuration) = instance.configuration() else {
                continue;
            };
            let state = self.configurations.configurations.get(&configuration);
            let Some(state) = state.filter(|state| state.restarts_pods && !state.is_deleting)
            else {
                continue;
            };
            let nodes = instance.status.nodes.iter();
            for (node, status) in nodes.filter(|(node, _)| instance.is_seen_by(node)) {
                for pod in status.holders.values() {
                    let Some(pod) = PodKey::read(pod) else {
                        continue;
                    };
                    let one = Use {
                        instance: key.clone(),
                        node: node.clone(),
                        pod,
                    };
                    let owner = Owner {
                        configuration: configuration.clone(),
                        uid: state.uid.clone(),
                    };
                    all.insert(one, owner);
                }
            }
        }
        all
    }
}

impl Losses {
    /// Compares the uses with those of the last call: a use is lost if its node no longer sees the device. A use that ended before, or
    /// whose device comes back, is not lost. While a loss is uncertain, its wait does not begin: when a handler works again, its report may
    /// arrive before its devices.
    pub fn update(&mut self, world: &World<'_>, now: Instant, clock: Timestamp) {
        let before = std::mem::replace(&mut self.held, world.uses());
        for (one, owner) in before {
            if !world.is_seen(&one) && world.is_certain(&one.node, &owner) {
                self.lost.insert(one, (owner, clock, None));
            }
        }
        self.lost
            .retain(|one, (owner, _, _)| !world.is_seen(one) && world.restarts(owner));
        for (one, (owner, _, certain)) in &mut self.lost {
            let is_certain = world.is_certain(&one.node, owner);
            *certain = is_certain.then_some(certain.unwrap_or(now));
        }
    }

    /// Returns the pods to evict, each with its first loss, and the time at which the next one is due.
    pub fn due(&self, now: Instant) -> (BTreeMap<PodKey, Loss>, Option<Instant>) {
        let (mut due, mut next) = (BTreeMap::new(), None::<Instant>);
        for (one, (owner, since, certain)) in &self.lost {
            let Some(at) = certain.map(|certain| certain + WAIT) else {
                continue;
            };
            if at > now {
                next = Some(next.map_or(at, |next| next.min(at)));
                continue;
            }
            due.entry(one.pod.clone()).or_insert_with(|| Loss {
                configuration: owner.configuration.clone(),
                instance: one.instance.clone(),
                node: one.node.clone(),
                since: *since,
            });
        }
        (due, next)
    }

    /// Forgets the losses of a pod on a node.
    pub fn settle(&mut self, pod: &PodKey, node: &str) {
        self.lost
            .retain(|one, _| one.pod != *pod || one.node != node);
    }
}

/// Returns the reason why a pod whose device is gone stays, or `None` if it is to be evicted: the pod of that name may be another one, and
/// an eviction helps only if another node may get the next pod.
pub fn reason_to_stay(pod: &PodState, loss: &Loss) -> Option<&'static str> {
    let created = pod
        .created
        .and_then(|created| created.checked_add(SECOND).ok());
    let is_older = created.is_some_and(|created| created <= loss.since);
    if !is_older || pod.node.as_ref() != Some(&loss.node) {
        return Some("another pod has its name");
    }
    if pod.is_ending {
        return Some("it ends already");
    }
    if pod.is_broker {
        return Some("it is a broker");
    }
    if pod.is_mirror {
        return Some("it is a static pod");
    }
    match pod.owner.as_deref() {
        None | Some("Node") => Some("nothing would create it again"),
        Some("DaemonSet") => Some("its DaemonSet would create it again on the same node"),
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests;
