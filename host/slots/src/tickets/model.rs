//! Decides which pod an Allocate of a ticket is for, and which reserved slots are released. Pure; time is an argument.
//!
//! The kubelet does not say for which pod it asks. But it lists the pod that it admits, and no pod that comes later. Of the listed pods, only that
//! one has a container that is to get devices and has no ticket in the kubelet's own records.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::InstanceSet;
use leafhost_core::slot::DeviceUsage;
use leafhost_kubelet::KubeletRun;

use crate::model::slot_state::{Absence, Reason, SlotKey};
use crate::model::snapshot::{Admission, Pod, Presence, Served, Snapshot};

/// Devices that a scheduler has reserved for the containers of a pod.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Pod as `namespace/name`.
    pub pod: String,
    /// Indexes of the containers that get devices.
    pub places: BTreeSet<u32>,
    /// Containers of which at least one device is known here, by index.
    pub containers: BTreeMap<u32, ReservedDevices>,
}

/// Devices that are reserved for a container.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReservedDevices {
    /// Name of the container.
    pub name: String,
    /// Number of devices that the container gets.
    pub of: u32,
    /// Slots of the Instances that are known here, by the device's position in the container.
    pub devices: BTreeMap<u32, SlotKey>,
}

impl ReservedDevices {
    /// Returns true if all devices of the container are known here.
    pub fn is_whole(&self) -> bool {
        u32::try_from(self.devices.len()).is_ok_and(|found| found >= self.of)
    }
}

/// Reservations by the uid of the pod.
pub type Reservations = BTreeMap<String, Reservation>;

/// Returns the reservations on a node.
pub fn reservations(node: &str, instances: &InstanceSet) -> Reservations {
    let mut all = Reservations::new();
    for (key, slot, uid) in reserved_slots(node, instances) {
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

/// Returns the slots that a scheduler has reserved for pods of a node, each with the uid of its pod.
pub fn reserved_slots(node: &str, instances: &InstanceSet) -> Vec<(InstanceKey, String, String)> {
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

/// Container that an Allocate is for.
#[derive(Debug, PartialEq, Eq)]
pub enum Next<'a> {
    /// Known container, with its pod's uid and reservation.
    Container(&'a str, &'a Reservation, &'a ReservedDevices),
    /// No container that is known yet.
    Nobody,
    /// More than one pod waits for devices; these are their names.
    Unclear(Vec<&'a str>),
}

/// Returns the container that an Allocate is for. `answered` are containers whose answer the kubelet may not have recorded yet. `over` are the uids
/// of pods that had tickets in an earlier snapshot; if the kubelet has no ticket of such a pod any more, the pod is skipped, because another pod may
/// have its name now. If several pods wait, the one for which the node is `locked` is chosen.
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
    if let Some(locked) = locked
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

/// Returns the containers of a pod that have no devices yet, in order. An item is `None` if the devices of the container are not known here, so that
/// its state cannot be determined yet.
fn waiting<'a, 's>(
    uid: &'s str,
    reservation: &'a Reservation,
    admission: &'s Admission,
    answered: &'s BTreeSet<Served>,
) -> impl Iterator<Item = Option<&'a ReservedDevices>> + use<'a, 's> {
    reservation.places.iter().filter_map(move |place| {
        let Some(wanted) = reservation.containers.get(place) else {
            return Some(None);
        };
        let container = (uid.to_owned(), wanted.name.clone());
        let is_served = admission.served.contains(&container) || answered.contains(&container);
        (!is_served).then_some(Some(wanted))
    })
}

/// Returns true if at most one container of the pod still waits for devices.
pub fn is_last(
    uid: &str,
    reservation: &Reservation,
    admission: &Admission,
    answered: &BTreeSet<Served>,
) -> bool {
    waiting(uid, reservation, admission, answered).count() <= 1
}

/// Record of the pods with reserved slots, and of who last saw their tickets.
#[derive(Debug, Default)]
pub struct TicketHistory {
    /// Pods with reserved slots, by uid.
    known: BTreeMap<String, PodRecord>,
    kubelet: Option<KubeletRun>,
    /// True once PodResources has answered a read.
    has_looked: bool,
}

/// Agent and kubelet run that last saw a pod's ticket.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
enum SeenBy {
    /// No ticket was seen.
    #[default]
    Nobody,
    /// An earlier agent saw a ticket.
    Earlier,
    /// This agent saw a ticket, during this run of the kubelet.
    Now(Option<KubeletRun>),
}

#[derive(Debug, Clone, Default)]
struct PodRecord {
    seen: SeenBy,
    /// Absence of the pod's tickets from snapshots.
    absence: Absence,
}

/// Result of a read of the kubelet's records.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct TicketChanges {
    /// Slots to release, each with the uid of its pod and the reason.
    pub back: Vec<(SlotKey, String, Reason)>,
    /// Uids of the pods that the kubelet has tickets for.
    pub holders: BTreeSet<String>,
}

impl TicketHistory {
    /// Returns the uids of the pods that were seen to have tickets during this run of the kubelet.
    pub fn seen_by(&self, kubelet: Option<KubeletRun>) -> BTreeSet<String> {
        let seen = self.known.iter();
        let seen = seen.filter(|(_, known)| known.seen == SeenBy::Now(kubelet));
        seen.map(|(uid, _)| uid.clone()).collect()
    }

    /// Evaluates a snapshot whose device ids are tickets. A slot is released if this run of the kubelet had a ticket for its pod and has none any more; if
    /// an earlier run or agent saw a ticket and the pod is gone; or if no ticket was seen for `grace`, although the kubelet answers, and the pod is
    /// not on the node. Pods in `recent` are skipped, because the kubelet may not have recorded their answers yet.
    pub fn observe(
        &mut self,
        node: &str,
        instances: &InstanceSet,
        snapshot: &Snapshot,
        (recent, grace): (&BTreeSet<String>, Duration),
    ) -> TicketChanges {
        let places = reserved_slots(node, instances);
        let mut seen = TicketChanges::default();
        let Some(listed) = &snapshot.listed else {
            return seen;
        };
        let is_new_kubelet = snapshot.kubelet_run != self.kubelet;
        self.kubelet = snapshot.kubelet_run;
        let booked = snapshot.checkpoint.iter();
        let booked = booked.flat_map(|checked| checked.entries.keys());
        let (mut held, mut unsure) = (BTreeSet::new(), BTreeSet::new());
        for device_id in listed.keys().chain(booked) {
            let uids = |pods: &BTreeSet<Pod>| -> Vec<String> {
                pods.iter().filter_map(|pod| pod.uid.clone()).collect()
            };
            match snapshot.presence(device_id) {
                Presence::Held(pods) => held.extend(uids(&pods)),
                Presence::Unsure => {
                    let entries = snapshot.checkpoint.iter();
                    let entries = entries.filter_map(|checked| checked.entries.get(device_id));
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
            // An earlier agent saw the ticket. After the first read, the holder may still be the pod that had the slot before.
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
                known.absence = Absence::default();
            }
            if held.contains(uid) {
                known.seen = SeenBy::Now(snapshot.kubelet_run);
                known.absence = Absence::default();
                seen.holders.insert(uid.clone());
                continue;
            }
            // A checkpoint that cannot be read proves nothing.
            if unsure.contains(uid) || recent.contains(uid) || snapshot.checkpoint.is_none() {
                continue;
            }
            let own = places.iter().filter(|(_, _, other)| other == uid);
            let own: Vec<SlotKey> = own
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
                    known.absence = Absence::default();
                    None
                }
                SeenBy::Nobody => {
                    let is_long = known.absence.is_long(snapshot.begun, grace);
                    is_long.then_some(Reason::Unclaimed)
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
