//! The slots of this node: the claims in the store, and the observed holders. Pure; time is an argument.
//!
//! Holders are only observed. A slot is released when the kubelet that had it has released it, or when no pod was seen to have it for the
//! grace. A read error proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::device_id::{DeviceId, device_id_of, resource_name};
use leafhost_core::instance::{HeldSlots, Instance, InstanceKey};
use leafhost_core::ports::InstanceSet;
use leafhost_core::slot::{DeviceUsage, slot_number};
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

use super::name_index::NameIndex;
use super::slot_state::{Absence, Holder, RECORD_WAIT, Reason, SlotState};
use super::snapshot::{Presence, Snapshot};

/// All slots of this node.
#[derive(Debug, Clone, Default)]
pub struct SlotTable {
    /// Slots by the resource and id that the kubelet uses.
    pub by_device_id: BTreeMap<DeviceId, SlotState>,
    kubelet_run: Option<KubeletRun>,
    /// Start of the newest snapshot with an answer.
    newest: Option<Instant>,
    /// Time from which a snapshot can show slots that the newest one covered too soon after their allocation.
    due: Option<Instant>,
    /// Start of the first snapshot with an answer.
    first: Option<Instant>,
    /// Kubelet whose records had all slots of this node, according to this or an earlier run of the agent.
    trusted: Option<KubeletRun>,
    /// True if the machine has booted since the agent before this one started.
    has_rebooted: bool,
}

/// Claim of one slot, as the store records it.
struct Claim {
    key: InstanceKey,
    slot: String,
    usage: DeviceUsage,
}

impl SlotTable {
    /// Creates an empty table. `trusted` is the kubelet that an earlier run of the agent has stored; `has_rebooted` is true if the machine
    /// has booted since that run started.
    pub fn new(trusted: Option<KubeletRun>, has_rebooted: bool) -> Self {
        Self {
            trusted,
            has_rebooted,
            ..Self::default()
        }
    }

    /// Updates the table from the claims in the store. A slot without a claim of this node stays only while the kubelet is seen to have it,
    /// or while an answer for it may be on its way.
    pub fn update(&mut self, node: &str, name_index: &NameIndex, instances: &InstanceSet) {
        for state in self.by_device_id.values_mut() {
            let is_there = |origin: &InstanceKey| instances.instances.contains_key(origin);
            state.is_orphaned = state.origin.as_ref().is_some_and(|one| !is_there(one));
        }
        let mut by_device_id: BTreeMap<DeviceId, Vec<Claim>> = BTreeMap::new();
        for (key, instance) in &instances.instances {
            for (device_id, slot, usage) in claims(node, instance) {
                by_device_id.entry(device_id).or_default().push(Claim {
                    key: key.clone(),
                    slot: slot.to_owned(),
                    usage,
                });
            }
        }
        let mut stored: BTreeMap<DeviceId, Claim> = BTreeMap::new();
        for (device_id, mut claims) in by_device_id {
            let state = self.by_device_id.get(&device_id);
            if let Some(index) = behind(state, name_index, &claims) {
                stored.insert(device_id, claims.swap_remove(index));
            }
            // Several slots have one id: the kubelet can mean only one, and no pod is ever seen with the others.
            stored.extend(
                claims
                    .into_iter()
                    .map(|claim| (duplicate_id(&claim), claim)),
            );
        }
        self.by_device_id.retain(|device_id, state| {
            stored.contains_key(device_id)
                || matches!(state.holder, Holder::Seen { .. })
                || state.allocated.is_some()
        });
        for (device_id, state) in &mut self.by_device_id {
            if !stored.contains_key(device_id) {
                state.stored = None;
            }
        }
        for (device_id, Claim { key, slot, usage }) in stored {
            // If several slots have one id, the container may have another of them.
            let kubelet = self.trusted.filter(|_| !device_id.resource.is_empty());
            let is_before_boot = self.has_rebooted && !device_id.resource.is_empty();
            let state = self
                .by_device_id
                .entry(device_id)
                .or_insert_with(|| SlotState {
                    kubelet,
                    is_before_boot,
                    ..SlotState::default()
                });
            state.instance.clone_from(&key.name);
            state.origin = Some(key.clone());
            state.is_orphaned = false;
            (state.slot, state.usage, state.stored) = (slot, usage, Some(key));
        }
    }

    /// Records that an allocation of these device ids was answered to `kubelet`.
    pub fn allocated(
        &mut self,
        device_ids: &BTreeSet<DeviceId>,
        kubelet: Option<KubeletRun>,
        at: Instant,
    ) {
        for device_id in device_ids {
            if let Some(state) = self.by_device_id.get_mut(device_id) {
                state.allocated = Some(at);
                state.holder = Holder::default();
                state.absent = false;
                state.kubelet = kubelet;
                state.is_before_boot = false;
            }
        }
    }

    /// Records that an allocation of these device ids was answered with an error: the kubelet asks only for device ids that its records give to no
    /// other pod, and the pod it asked for got nothing.
    pub fn refused(&mut self, device_ids: impl Iterator<Item = DeviceId>) {
        for device_id in device_ids {
            if let Some(state) = self.by_device_id.get_mut(&device_id) {
                state.absent = true;
            }
        }
    }

    /// Removes a slot that was released.
    pub fn released(&mut self, device_id: &DeviceId) {
        self.by_device_id.remove(device_id);
    }

    /// Records a snapshot; returns the slots to release.
    pub fn observe(&mut self, snapshot: &Snapshot, grace: Duration) -> Vec<(DeviceId, Reason)> {
        if self.is_overtaken(snapshot) {
            return Vec::new();
        }
        let restarted = snapshot.kubelet_run != self.kubelet_run;
        if snapshot.is_answer() {
            self.kubelet_run = snapshot.kubelet_run;
            self.newest = Some(snapshot.begun);
            self.first.get_or_insert(snapshot.begun);
        }
        let first = self.first;
        self.settle(snapshot);
        self.due = None;
        let mut back = Vec::new();
        for (device_id, state) in &mut self.by_device_id {
            if restarted {
                // A kubelet that has just started does not know all its pods yet.
                state.holder.forget_absence();
            }
            let booked = |wait: Duration| {
                state
                    .allocated
                    .is_none_or(|allocated| allocated + wait <= snapshot.begun)
            };
            match snapshot.presence(device_id) {
                Presence::Held(pods) if booked(Duration::ZERO) => {
                    state.absent = false;
                    state.holder = Holder::Seen {
                        pods,
                        kubelet_run: snapshot.kubelet_run,
                        lost: false,
                        absence: Absence::default(),
                    };
                }
                Presence::Absent { certain, rewritten } if booked(RECORD_WAIT) => {
                    state.absent |= certain;
                    let was_lost = state.holder.is_lost();
                    if rewritten && state.is_undelivered(first, snapshot) {
                        let reason = if state.is_before_boot {
                            Reason::PodGone
                        } else {
                            Reason::Undelivered
                        };
                        back.push((device_id.clone(), reason));
                    } else if let Some(reason) = state.holder.miss(snapshot, certain, grace) {
                        back.push((device_id.clone(), reason));
                    }
                    if state.holder.is_lost() && !was_lost {
                        tracing::warn!(
                            slot = state.slot,
                            holder = state.holder.describe(),
                            "the kubelet has lost its record of a slot whose pod still exists; no other pod gets it"
                        );
                    }
                }
                Presence::Absent { .. } => {
                    let booked = state.allocated.map(|allocated| allocated + RECORD_WAIT);
                    self.due = [self.due, booked].into_iter().flatten().min();
                }
                _ => {}
            }
        }
        back
    }

    /// Returns true if a snapshot that began later was recorded before, so that this one may be outdated.
    fn is_overtaken(&self, snapshot: &Snapshot) -> bool {
        self.newest.is_some_and(|newest| snapshot.begun < newest)
    }

    /// Corrects the slot of a device id if the kubelet's record of the answer names another slot: several slots were claimed under one id,
    /// and only the answer shows which of them the container has.
    fn settle(&mut self, snapshot: &Snapshot) {
        let slots = snapshot
            .checkpoint
            .iter()
            .flat_map(|checked| &checked.slots)
            .filter(|(device_id, slot)| {
                self.by_device_id.get(device_id).is_some_and(|state| {
                    state.slot != **slot
                        && state
                            .allocated
                            .is_none_or(|at| at + RECORD_WAIT <= snapshot.begun)
                }) && matches!(snapshot.presence(device_id), Presence::Held(_))
            });
        let wrong: Vec<(DeviceId, String)> = slots
            .map(|(device_id, slot)| (device_id.clone(), slot.clone()))
            .collect();
        for (device_id, slot) in wrong {
            let Some(instance) = instance_of(&slot).map(str::to_owned) else {
                continue;
            };
            let Some(mut wrong) = self.by_device_id.remove(&device_id) else {
                continue;
            };
            let mut right = wrong.clone();
            (right.instance, right.slot) = (instance, slot);
            let other = self.by_device_id.iter().find(|(other, state)| {
                other.resource.is_empty() && state.slot == right.slot && state.usage == right.usage
            });
            let other = other.map(|(other, state)| (other.clone(), state.stored.clone()));
            if let Some((other, key)) = other {
                self.by_device_id.remove(&other);
                right.stored = key;
            } else {
                right.stored = None;
            }
            right.origin.clone_from(&right.stored);
            right.is_orphaned = false;
            self.by_device_id.insert(device_id, right);
            if let Some(key) = &wrong.stored {
                let claim = Claim {
                    key: key.clone(),
                    slot: wrong.slot.clone(),
                    usage: wrong.usage.clone(),
                };
                wrong.holder = Holder::default();
                (wrong.absent, wrong.kubelet) = (false, None);
                self.by_device_id.insert(duplicate_id(&claim), wrong);
            }
        }
    }

    /// Adds the device ids that the kubelet has and this agent does not know: allocations of an earlier run whose Instance is gone.
    pub fn adopt(&mut self, node: &str, name_index: &NameIndex, snapshot: &Snapshot) {
        if self.is_overtaken(snapshot) {
            return;
        }
        for (device_id, found) in
            snapshot.unknown_ids(|device_id| self.by_device_id.contains_key(device_id))
        {
            let Some(name) = resource_name(&device_id.resource) else {
                continue;
            };
            let slot_of_instance = slot_number(name, &device_id.id).is_some();
            let (instance, slot, usage) = if let Some(slot) = found.slot {
                let Some(instance) = instance_of(&slot).map(str::to_owned) else {
                    continue;
                };
                let usage = DeviceUsage::Configuration {
                    device: device_id.id.clone(),
                    node: node.to_owned(),
                };
                (instance, slot, usage)
            } else if slot_of_instance && !name_index.configurations.contains_key(name) {
                let usage = DeviceUsage::Node(node.to_owned());
                (name.to_owned(), device_id.id.clone(), usage)
            } else {
                continue;
            };
            let state = SlotState {
                instance,
                slot,
                usage,
                holder: Holder::Seen {
                    pods: found.pods,
                    kubelet_run: snapshot.kubelet_run,
                    lost: false,
                    absence: Absence::default(),
                },
                ..SlotState::default()
            };
            tracing::info!(
                slot = state.slot,
                device = %device_id,
                holder = state.holder.describe(),
                "the kubelet has a slot that no claim had recorded"
            );
            self.by_device_id.insert(device_id, state);
        }
    }

    /// Returns the slots that containers were seen to have, by Instance. A slot that only the kubelet knows belongs to the Instance that
    /// has or would have the name, or else to the Instance that is gone.
    pub fn held(&self, name_index: &NameIndex) -> HeldSlots {
        let mut held = HeldSlots::new();
        for state in self.by_device_id.values() {
            if let Holder::Seen { .. } = state.holder
                && let Some(key) = state
                    .live_origin()
                    .cloned()
                    .or_else(|| name_index.key_of(&state.instance))
                    .or_else(|| state.origin.clone())
            {
                let slots = held.entry(key).or_default();
                slots.insert(state.slot.clone(), state.usage.clone());
            }
        }
        held
    }

    /// Returns the time from which the next snapshot can show more than the newest; `None` if time does not matter.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the device ids that no pod was seen to have, although the kubelet would have recorded an answer by now.
    pub fn open(&self, now: Instant) -> BTreeSet<DeviceId> {
        let is_open = |state: &SlotState| {
            let answered = state.allocated.or(self.first);
            matches!(state.holder, Holder::Unseen(_))
                && !state.is_uncertain(self.kubelet_run)
                && answered.is_some_and(|at| at + RECORD_WAIT <= now)
        };
        let states = self.by_device_id.iter();
        states
            .filter(|(_, state)| is_open(state))
            .map(|(device_id, _)| device_id.clone())
            .collect()
    }

    /// Returns the current kubelet once its records have all slots of this node, unless it is trusted already.
    pub fn kubelet_to_trust(&self) -> Option<KubeletRun> {
        let kubelet = self
            .kubelet_run
            .filter(|_| self.kubelet_run != self.trusted);
        let has_all = self.by_device_id.values().all(|state| match state.holder {
            Holder::Unseen(_) => state.kubelet == self.kubelet_run,
            Holder::Seen { kubelet_run, .. } => kubelet_run == self.kubelet_run,
        });
        kubelet.filter(|_| has_all)
    }

    /// Records that the ledger has stored this kubelet.
    pub fn trust(&mut self, kubelet: KubeletRun) {
        self.trusted = Some(kubelet);
        self.has_rebooted = false;
    }

    /// Returns the kubelet that was last read.
    pub fn kubelet_run(&self) -> Option<KubeletRun> {
        self.kubelet_run
    }
}

/// Returns the index of the claim that a device id stands for: preferably that of the known slot, then that of the Instance that owns its
/// name. Returns `None` if a container was seen to have a slot that is not among the claims.
fn behind(state: Option<&SlotState>, name_index: &NameIndex, claims: &[Claim]) -> Option<usize> {
    let mut best: Option<(usize, (bool, bool, bool))> = None;
    for (index, claim) in claims.iter().enumerate() {
        let is_slot = state.is_some_and(|state| {
            state.slot == claim.slot
                && state.instance == claim.key.name
                && state
                    .live_origin()
                    .is_none_or(|live_origin| *live_origin == claim.key)
        });
        // A slot that a container was seen to have is not replaced.
        if !is_slot && state.is_some_and(|state| matches!(state.holder, Holder::Seen { .. })) {
            continue;
        }
        let is_key = state.is_some_and(|state| state.stored.as_ref() == Some(&claim.key));
        let is_owner = name_index.instances.get(&claim.key.name) == Some(&claim.key);
        let place = (is_slot, is_key, is_owner);
        if best.is_none_or(|(_, before)| place > before) {
            best = Some((index, place));
        }
    }
    best.map(|(index, _)| index)
}

/// Returns a device id that no kubelet can name.
fn duplicate_id(claim: &Claim) -> DeviceId {
    DeviceId::new("", format!("{}/{}", claim.key.namespace, claim.slot))
}

/// Returns the name of the Instance in a slot id.
fn instance_of(slot: &str) -> Option<&str> {
    let (instance, _) = slot.rsplit_once('-')?;
    slot_number(instance, slot).map(|_| instance)
}

/// Returns the slots of an Instance that `node` has claimed.
fn claims<'a>(
    node: &'a str,
    instance: &'a Instance,
) -> impl Iterator<Item = (DeviceId, &'a str, DeviceUsage)> {
    let usage = instance.spec.device_usage.iter();
    usage
        .filter(|(_, usage)| !usage.is_empty())
        .filter_map(move |(slot, usage)| {
            let usage: DeviceUsage = usage.parse().ok()?;
            let device_id = device_id_of(node, instance, slot, &usage)?;
            Some((device_id, slot.as_str(), usage))
        })
}

#[cfg(test)]
mod tests;
