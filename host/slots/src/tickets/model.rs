//! Which pod an Allocate of a ticket is for, and which reserved slots come back. Pure; time is an argument.
//!
//! The kubelet does not say for which pod it asks. But it lists the pod that it admits, and no pod that comes later; and of the pods that are
//! listed, that one alone has a container that is to get devices and has no ticket in the kubelet's own records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::slot::DeviceUsage;
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

use crate::model::admission::{Admission, Served};
use crate::model::hold::Reason;
use crate::model::snapshot::{Pod, Presence, Snapshot};

/// Says which devices a scheduler has given to the containers of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservation {
    /// `namespace/name` of the pod.
    pub pod: String,
    /// The places of the containers that get devices.
    pub places: BTreeSet<u32>,
    /// By place the containers of which a device is known here.
    pub containers: BTreeMap<u32, Wanted>,
}

/// Says which devices a container gets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wanted {
    /// The name of the container.
    pub name: String,
    /// How many devices it gets.
    pub of: u32,
    /// Those of which the Instances are known here, in their order.
    pub devices: BTreeMap<u32, Place>,
}

/// Is a slot of an Instance.
pub type Place = (InstanceKey, String);

/// By the uid of the pod.
pub type Reservations = BTreeMap<String, Reservation>;

/// Returns what is reserved on a node.
pub fn reservations(node: &str, instances: &InstanceSet) -> Reservations {
    let mut all = Reservations::new();
    for (key, slot, uid) in places(node, instances) {
        let instance = instances.instances.get(&key);
        let Some(reserved) = instance.and_then(|instance| instance.reserved(&slot)) else {
            continue;
        };
        let reservation = all.entry(uid).or_default();
        reservation.pod.clone_from(&reserved.pod);
        reservation.places.extend(&reserved.places);
        for one in &reserved.uses {
            reservation.places.insert(one.place);
            let wanted = reservation.containers.entry(one.place).or_default();
            wanted.name.clone_from(&one.container);
            wanted.of = wanted.of.max(one.of);
            wanted
                .devices
                .insert(one.number, (key.clone(), slot.clone()));
        }
    }
    all
}

/// Returns the slots that pods of a node have by a scheduler, each with the uid of its pod.
pub fn places(node: &str, instances: &InstanceSet) -> Vec<(InstanceKey, String, String)> {
    let mut all = Vec::new();
    for (key, instance) in &instances.instances {
        for (slot, usage) in &instance.spec.device_usage {
            if let Ok(DeviceUsage::Pod { uid, node: of }) = usage.parse()
                && of == node
            {
                all.push((key.clone(), slot.clone(), uid));
            }
        }
    }
    all
}

/// Says for which container an Allocate is.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// For this one, of the pod with the uid.
    Container(&'a str, &'a Reservation, &'a Wanted),
    /// For none that is known yet.
    Nobody,
    /// For one of the pods that are named.
    Unclear(Vec<&'a str>),
}

/// Returns for which container an Allocate is. `answered` are those that have an answer that the kubelet may not have written down yet, `over` the
/// uids of pods whose tickets the kubelet has had and has no more: another pod may have the name of one now. Of several it is the one for which the
/// node is `locked`.
pub fn next<'a>(
    reservations: &'a Reservations,
    admission: &Admission,
    answered: &BTreeSet<Served>,
    over: &BTreeSet<String>,
    locked: Option<&str>,
) -> Next<'a> {
    let active = reservations.iter().filter(|(uid, reservation)| {
        let is_over = over.contains(*uid) && !admission.served.iter().any(|(of, _)| of == *uid);
        admission.active.contains(&reservation.pod) && !is_over
    });
    let waiting = active.filter_map(|(uid, reservation)| {
        let next = waiting(uid, reservation, admission, answered).next();
        next.map(|wanted| (uid, reservation, wanted))
    });
    let mut waiting: Vec<_> = waiting.collect();
    if waiting.len() > 1
        && let Some(locked) = locked
        && waiting.iter().any(|(uid, ..)| *uid == locked)
    {
        waiting.retain(|(uid, ..)| *uid == locked);
    }
    match &waiting[..] {
        [] | [(_, _, None)] => Next::Nobody,
        [(uid, reservation, Some(wanted))] => Next::Container(uid, reservation, wanted),
        several => {
            let pods = several.iter();
            Next::Unclear(pods.map(|(_, one, _)| one.pod.as_str()).collect())
        }
    }
}

/// Returns the containers of a pod that have no devices yet, in their order; nothing for one of which it cannot be told before its devices are known
/// here.
fn waiting<'a, 's>(
    uid: &'s str,
    reservation: &'a Reservation,
    admission: &'s Admission,
    answered: &'s BTreeSet<Served>,
) -> impl Iterator<Item = Option<&'a Wanted>> + use<'a, 's> {
    reservation.places.iter().filter_map(move |place| {
        let Some(wanted) = reservation.containers.get(place) else {
            return Some(None);
        };
        let container = (uid.to_owned(), wanted.name.clone());
        let is_served = admission.served.contains(&container) || answered.contains(&container);
        (!is_served).then_some(Some(wanted))
    })
}

/// Tells that a pod gets nothing more after this container.
pub fn is_last(
    uid: &str,
    reservation: &Reservation,
    admission: &Admission,
    answered: &BTreeSet<Served>,
) -> bool {
    waiting(uid, reservation, admission, answered).count() <= 1
}

/// Remembers which pods were seen to have tickets.
#[derive(Debug, Default)]
pub struct Keeper {
    /// By the uid of the pod.
    known: BTreeMap<String, Known>,
    kubelet: Option<KubeletRun>,
    /// True once a look has shown anything.
    has_looked: bool,
}

/// Says who was seen to have a ticket for a pod.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum SeenBy {
    /// Nobody.
    #[default]
    Nobody,
    /// Some kubelet, by an earlier agent.
    Earlier,
    /// This kubelet.
    Now(Option<KubeletRun>),
}

#[derive(Debug, Clone, Default)]
struct Known {
    seen: SeenBy,
    /// Since when nobody was seen to have it, and how often.
    absent: Option<(Instant, u32)>,
}

/// Is what a look at the kubelet's records has shown.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// The slots that come back, with the uid of the pod that has them.
    pub back: Vec<(Place, String, Reason)>,
    /// The pods that were seen to have tickets, by uid.
    pub holders: BTreeSet<String>,
}

impl Keeper {
    /// Returns the pods that this kubelet was seen to have tickets for.
    pub fn seen_by(&self, kubelet: Option<KubeletRun>) -> BTreeSet<String> {
        let seen = self.known.iter();
        let seen = seen.filter(|(_, known)| known.seen == SeenBy::Now(kubelet));
        seen.map(|(uid, _)| uid.clone()).collect()
    }

    /// Takes a snapshot in, in which units are tickets. A slot comes back when the kubelet had a ticket for its pod and has none any more; or when
    /// it never had one for `grace`, although it answers, and the pod is not on the node. Of the pods in `recent` nothing is concluded: they have an
    /// answer that the kubelet may not have written down yet.
    pub fn see(
        &mut self,
        node: &str,
        instances: &InstanceSet,
        snapshot: &Snapshot,
        (recent, grace): (&BTreeSet<String>, Duration),
    ) -> Seen {
        let places = places(node, instances);
        let mut seen = Seen::default();
        let Some(listed) = &snapshot.listed else {
            return seen;
        };
        let is_new_kubelet = snapshot.kubelet_run != self.kubelet;
        self.kubelet = snapshot.kubelet_run;
        let booked = snapshot.checkpoint.iter();
        let booked = booked.flat_map(|checked| checked.entries.keys());
        let (mut held, mut unsure) = (BTreeSet::new(), BTreeSet::new());
        for unit in listed.keys().chain(booked) {
            let uids = |pods: &BTreeSet<Pod>| -> Vec<String> {
                pods.iter().filter_map(|pod| pod.uid.clone()).collect()
            };
            match snapshot.presence(unit) {
                Presence::Held(pods) => held.extend(uids(&pods)),
                Presence::Unsure => {
                    let entries = snapshot.checkpoint.iter();
                    let entries = entries.filter_map(|checked| checked.entries.get(unit));
                    unsure.extend(entries.flat_map(uids));
                }
                Presence::Absent { .. } => {}
            }
        }
        self.known
            .retain(|uid, _| places.iter().any(|(_, _, other)| other == uid));
        for (key, slot, uid) in &places {
            let instance = instances.instances.get(key);
            let status = instance.and_then(|one| one.status.nodes.get(node));
            let holder = status.and_then(|status| status.holders.get(slot));
            let reserved = instance.and_then(|one| one.reserved(slot));
            // An earlier agent saw it. Later it may be said of the pod that had the slot before.
            let is_own = holder.is_some() && holder == reserved.map(|reserved| &reserved.pod);
            let was_seen = !self.has_looked && is_own;
            let known = self.known.entry(uid.clone()).or_default();
            if was_seen && known.seen == SeenBy::Nobody {
                known.seen = SeenBy::Earlier;
            }
        }
        self.has_looked = true;
        for (uid, known) in &mut self.known {
            if is_new_kubelet {
                known.absent = None;
            }
            if held.contains(uid) {
                known.seen = SeenBy::Now(snapshot.kubelet_run);
                known.absent = None;
                seen.holders.insert(uid.clone());
                continue;
            }
            // Of a checkpoint that cannot be read nothing follows.
            if unsure.contains(uid) || recent.contains(uid) || snapshot.checkpoint.is_none() {
                continue;
            }
            let own = places.iter().filter(|(_, _, other)| other == uid);
            let own: Vec<Place> = own
                .map(|(key, slot, _)| (key.clone(), slot.clone()))
                .collect();
            let is_active = own.iter().any(|(key, slot)| {
                let instance = instances.instances.get(key);
                let reserved = instance.and_then(|instance| instance.reserved(slot));
                reserved.is_some_and(|reserved| snapshot.active.contains(&reserved.pod))
            });
            let is_gone = snapshot.alive.get(uid) == Some(&false);
            let reason = match known.seen {
                SeenBy::Now(kubelet) if kubelet == snapshot.kubelet_run => Some(Reason::GivenBack),
                SeenBy::Now(_) | SeenBy::Earlier => is_gone.then_some(Reason::PodGone),
                SeenBy::Nobody if is_active => {
                    known.absent = None;
                    None
                }
                SeenBy::Nobody => {
                    let (since, count) = known.absent.unwrap_or((snapshot.begun, 0));
                    known.absent = Some((since, count.saturating_add(1)));
                    let is_long = snapshot.begun.saturating_duration_since(since) >= grace;
                    (count > 0 && is_long).then_some(Reason::Unclaimed)
                }
            };
            if let Some(reason) = reason {
                let back = own.into_iter().map(|place| (place, uid.clone(), reason));
                seen.back.extend(back);
            }
        }
        seen
    }
}
