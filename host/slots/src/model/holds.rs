//! The slots of this node: the claims in the store, and the observed holders. Pure; time is an argument.
//!
//! Holders are only observed. A slot is released when the kubelet that had it has given it back, or when no pod was seen to have it for the
//! grace. A read error proves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use leafhost_core::instance::{HeldSlots, Instance, InstanceKey};
use leafhost_core::ports::InstanceSet;
use leafhost_core::slot::{DeviceUsage, slot_number};
use leafhost_core::unit::{Unit, resource_name, unit_of};
use leafhost_kubelet::KubeletRun;
use tokio::time::Instant;

use super::hold::{Absence, Hold, Holder, RECORD_WAIT, Reason};
use super::snapshot::{Presence, Snapshot};
use super::view::Owners;

/// All slots of this node.
#[derive(Debug, Clone, Default)]
pub struct Holds {
    /// Slots by the resource and id that the kubelet uses.
    pub by_unit: BTreeMap<Unit, Hold>,
    kubelet_run: Option<KubeletRun>,
    /// Start of the newest snapshot with an answer.
    newest: Option<Instant>,
    /// Time from which a snapshot can show slots that the newest one covered too soon after their allocation.
    due: Option<Instant>,
    /// Start of the first snapshot with an answer.
    first: Option<Instant>,
    /// Kubelet whose records had all slots of this node, as this or an earlier agent saw it.
    trusted: Option<KubeletRun>,
}

/// Claim of one slot, as the store records it.
struct Claim {
    key: InstanceKey,
    slot: String,
    usage: DeviceUsage,
}

impl Holds {
    /// Returns an empty set; `trusted` is the kubelet that an earlier agent has noted.
    pub fn new(trusted: Option<KubeletRun>) -> Self {
        Self {
            trusted,
            ..Self::default()
        }
    }

    /// Takes over the claims in the store. A slot without a claim of this node stays only while the kubelet is seen to have it, or while an
    /// answer for it may be on its way.
    pub fn update(&mut self, node: &str, owners: &Owners, instances: &InstanceSet) {
        for hold in self.by_unit.values_mut() {
            let is_there = |origin: &InstanceKey| instances.instances.contains_key(origin);
            hold.is_orphaned = hold.origin.as_ref().is_some_and(|one| !is_there(one));
        }
        let mut by_unit: BTreeMap<Unit, Vec<Claim>> = BTreeMap::new();
        for (key, instance) in &instances.instances {
            for (unit, slot, usage) in claims(node, instance) {
                by_unit.entry(unit).or_default().push(Claim {
                    key: key.clone(),
                    slot: slot.to_owned(),
                    usage,
                });
            }
        }
        let mut stored: BTreeMap<Unit, Claim> = BTreeMap::new();
        for (unit, mut claims) in by_unit {
            let hold = self.by_unit.get(&unit);
            if let Some(index) = behind(hold, owners, &claims) {
                stored.insert(unit, claims.swap_remove(index));
            }
            // Several slots have one id: the kubelet can mean only one, and no pod is ever seen with the others.
            stored.extend(claims.into_iter().map(|claim| (stray(&claim), claim)));
        }
        self.by_unit.retain(|unit, hold| {
            stored.contains_key(unit)
                || matches!(hold.holder, Holder::Seen { .. })
                || hold.allocated.is_some()
        });
        for (unit, hold) in &mut self.by_unit {
            if !stored.contains_key(unit) {
                hold.stored = None;
            }
        }
        for (unit, Claim { key, slot, usage }) in stored {
            // If several slots have one id, the container may have another of them.
            let kubelet = self.trusted.filter(|_| !unit.resource.is_empty());
            let hold = self.by_unit.entry(unit).or_insert_with(|| Hold {
                instance: String::new(),
                slot: String::new(),
                usage: DeviceUsage::Unused,
                stored: None,
                origin: None,
                is_orphaned: false,
                allocated: None,
                holder: Holder::Unseen(Absence::default()),
                absent: false,
                kubelet,
            });
            hold.instance.clone_from(&key.name);
            hold.origin = Some(key.clone());
            hold.is_orphaned = false;
            (hold.slot, hold.usage, hold.stored) = (slot, usage, Some(key));
        }
    }

    /// Records that an allocation of these units was answered to `kubelet`.
    pub fn allocated(&mut self, units: &BTreeSet<Unit>, kubelet: Option<KubeletRun>, at: Instant) {
        for unit in units {
            if let Some(hold) = self.by_unit.get_mut(unit) {
                hold.allocated = Some(at);
                hold.holder = Holder::Unseen(Absence::default());
                hold.absent = false;
                hold.kubelet = kubelet;
            }
        }
    }

    /// Records that an allocation of these units was answered with an error: the kubelet asks only for units that its records give to no
    /// other pod, and the pod it asked for got nothing.
    pub fn refused(&mut self, units: impl Iterator<Item = Unit>) {
        for unit in units {
            if let Some(hold) = self.by_unit.get_mut(&unit) {
                hold.absent = true;
            }
        }
    }

    /// Removes a slot that was released.
    pub fn released(&mut self, unit: &Unit) {
        self.by_unit.remove(unit);
    }

    /// Takes in a snapshot; returns the slots that are to be released.
    pub fn see(&mut self, snapshot: &Snapshot, grace: Duration) -> Vec<(Unit, Reason)> {
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
        for (unit, hold) in &mut self.by_unit {
            if restarted {
                // A kubelet that has just started does not know all its pods yet.
                hold.holder.forget_absence();
            }
            let booked = |wait: Duration| {
                hold.allocated
                    .is_none_or(|allocated| allocated + wait <= snapshot.begun)
            };
            match snapshot.presence(unit) {
                Presence::Held(pods) if booked(Duration::ZERO) => {
                    hold.absent = false;
                    hold.holder = Holder::Seen {
                        pods,
                        kubelet_run: snapshot.kubelet_run,
                        lost: false,
                        absence: Absence::default(),
                    };
                }
                Presence::Absent { certain, anew } if booked(RECORD_WAIT) => {
                    hold.absent |= certain;
                    let was_lost = hold.holder.is_lost();
                    if anew && hold.is_undelivered(first, snapshot) {
                        back.push((unit.clone(), Reason::Undelivered));
                    } else if let Some(reason) = hold.holder.miss(snapshot, certain, grace) {
                        back.push((unit.clone(), reason));
                    }
                    if hold.holder.is_lost() && !was_lost {
                        tracing::warn!(
                            slot = hold.slot,
                            holder = hold.holder.words(),
                            "the kubelet has lost its record of a slot whose pod is still there; no other pod gets it"
                        );
                    }
                }
                Presence::Absent { .. } => {
                    let booked = hold.allocated.map(|allocated| allocated + RECORD_WAIT);
                    self.due = [self.due, booked].into_iter().flatten().min();
                }
                _ => {}
            }
        }
        back
    }

    /// Returns true if a snapshot that began later was taken in before: this one may be outdated.
    fn is_overtaken(&self, snapshot: &Snapshot) -> bool {
        self.newest.is_some_and(|newest| snapshot.begun < newest)
    }

    /// Corrects the slot of a unit if the kubelet's record of the answer names another: several slots were claimed under one id, and only
    /// the answer tells which of them the container has.
    fn settle(&mut self, snapshot: &Snapshot) {
        let slots = snapshot
            .checkpoint
            .iter()
            .flat_map(|checked| &checked.slots)
            .filter(|(unit, slot)| {
                self.by_unit.get(unit).is_some_and(|hold| {
                    hold.slot != **slot
                        && hold
                            .allocated
                            .is_none_or(|at| at + RECORD_WAIT <= snapshot.begun)
                }) && matches!(snapshot.presence(unit), Presence::Held(_))
            });
        let wrong: Vec<(Unit, String)> = slots
            .map(|(unit, slot)| (unit.clone(), slot.clone()))
            .collect();
        for (unit, slot) in wrong {
            let Some(instance) = instance_of(&slot).map(str::to_owned) else {
                continue;
            };
            let Some(mut wrong) = self.by_unit.remove(&unit) else {
                continue;
            };
            let mut right = wrong.clone();
            (right.instance, right.slot) = (instance, slot);
            let other = self.by_unit.iter().find(|(other, hold)| {
                other.resource.is_empty() && hold.slot == right.slot && hold.usage == right.usage
            });
            let other = other.map(|(other, hold)| (other.clone(), hold.stored.clone()));
            if let Some((other, key)) = other {
                self.by_unit.remove(&other);
                right.stored = key;
            } else {
                right.stored = None;
            }
            right.origin.clone_from(&right.stored);
            right.is_orphaned = false;
            self.by_unit.insert(unit, right);
            if let Some(key) = &wrong.stored {
                let claim = Claim {
                    key: key.clone(),
                    slot: wrong.slot.clone(),
                    usage: wrong.usage.clone(),
                };
                wrong.holder = Holder::Unseen(Absence::default());
                (wrong.absent, wrong.kubelet) = (false, None);
                self.by_unit.insert(stray(&claim), wrong);
            }
        }
    }

    /// Adds the units that the kubelet has and this agent does not know: allocations of an earlier run whose Instance is gone.
    pub fn adopt(&mut self, node: &str, owners: &Owners, snapshot: &Snapshot) {
        if self.is_overtaken(snapshot) {
            return;
        }
        for (unit, found) in snapshot.strangers(|unit| self.by_unit.contains_key(unit)) {
            let Some(name) = resource_name(&unit.resource) else {
                continue;
            };
            let slot_of_instance = slot_number(name, &unit.id).is_some();
            let (instance, slot, usage) = if let Some(slot) = found.slot {
                let Some(instance) = instance_of(&slot).map(str::to_owned) else {
                    continue;
                };
                let usage = DeviceUsage::Configuration {
                    device: unit.id.clone(),
                    node: node.to_owned(),
                };
                (instance, slot, usage)
            } else if slot_of_instance && !owners.configurations.contains_key(name) {
                let usage = DeviceUsage::Node(node.to_owned());
                (name.to_owned(), unit.id.clone(), usage)
            } else {
                continue;
            };
            let hold = Hold {
                instance,
                slot,
                usage,
                stored: None,
                origin: None,
                is_orphaned: false,
                allocated: None,
                holder: Holder::Seen {
                    pods: found.pods,
                    kubelet_run: snapshot.kubelet_run,
                    lost: false,
                    absence: Absence::default(),
                },
                absent: false,
                kubelet: snapshot.kubelet_run,
            };
            tracing::info!(
                slot = hold.slot,
                device = %unit,
                holder = hold.holder.words(),
                "the kubelet has a slot that nobody had claimed"
            );
            self.by_unit.insert(unit, hold);
        }
    }

    /// Returns the slots that containers were seen to have, by Instance. A slot that only the kubelet knows belongs to the Instance that
    /// has or would have the name, or else to the Instance that is gone.
    pub fn held(&self, owners: &Owners) -> HeldSlots {
        let mut held = HeldSlots::new();
        for hold in self.by_unit.values() {
            if let Holder::Seen { .. } = hold.holder
                && let Some(key) = hold
                    .sayer()
                    .cloned()
                    .or_else(|| owners.key_of(&hold.instance))
                    .or_else(|| hold.origin.clone())
            {
                let slots = held.entry(key).or_default();
                slots.insert(hold.slot.clone(), hold.usage.clone());
            }
        }
        held
    }

    /// Returns the time from which the next snapshot can show more than the newest; `None` if time does not matter.
    pub fn due(&self) -> Option<Instant> {
        self.due
    }

    /// Returns the units that no pod was seen to have, although the kubelet would have recorded an answer by now.
    pub fn open(&self, now: Instant) -> BTreeSet<Unit> {
        let is_open = |hold: &Hold| {
            let answered = hold.allocated.or(self.first);
            matches!(hold.holder, Holder::Unseen(_))
                && !hold.is_doubtful(self.kubelet_run)
                && answered.is_some_and(|at| at + RECORD_WAIT <= now)
        };
        let holds = self.by_unit.iter();
        holds
            .filter(|(_, hold)| is_open(hold))
            .map(|(unit, _)| unit.clone())
            .collect()
    }

    /// Returns the current kubelet once its records have all slots of this node, unless it is trusted already.
    pub fn news(&self) -> Option<KubeletRun> {
        let kubelet = self
            .kubelet_run
            .filter(|_| self.kubelet_run != self.trusted);
        let has_all = self.by_unit.values().all(|hold| match hold.holder {
            Holder::Unseen(_) => hold.kubelet == self.kubelet_run,
            Holder::Seen { kubelet_run, .. } => kubelet_run == self.kubelet_run,
        });
        kubelet.filter(|_| has_all)
    }

    /// Records that the ledger has noted this kubelet.
    pub fn trust(&mut self, kubelet: KubeletRun) {
        self.trusted = Some(kubelet);
    }

    /// Returns the kubelet that was last read.
    pub fn kubelet_run(&self) -> Option<KubeletRun> {
        self.kubelet_run
    }
}

/// Returns the index of the claim that one id stands for: the known slot, or else a claim of the Instance with the resource's name.
fn behind(hold: Option<&Hold>, owners: &Owners, claims: &[Claim]) -> Option<usize> {
    let mut best: Option<(usize, (bool, bool, bool))> = None;
    for (index, claim) in claims.iter().enumerate() {
        let is_slot = hold.is_some_and(|hold| {
            hold.slot == claim.slot
                && hold.instance == claim.key.name
                && hold.sayer().is_none_or(|sayer| *sayer == claim.key)
        });
        // A slot that a container was seen to have is not replaced.
        if !is_slot && hold.is_some_and(|hold| matches!(hold.holder, Holder::Seen { .. })) {
            continue;
        }
        let is_key = hold.is_some_and(|hold| hold.stored.as_ref() == Some(&claim.key));
        let is_owner = owners.instances.get(&claim.key.name) == Some(&claim.key);
        let place = (is_slot, is_key, is_owner);
        if best.is_none_or(|(_, before)| place > before) {
            best = Some((index, place));
        }
    }
    best.map(|(index, _)| index)
}

/// Returns a unit that no kubelet can name.
fn stray(claim: &Claim) -> Unit {
    Unit {
        resource: String::new(),
        id: format!("{}/{}", claim.key.namespace, claim.slot),
    }
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
) -> impl Iterator<Item = (Unit, &'a str, DeviceUsage)> {
    let usage = instance.spec.device_usage.iter();
    usage
        .filter(|(_, usage)| !usage.is_empty())
        .filter_map(move |(slot, usage)| {
            let usage: DeviceUsage = usage.parse().ok()?;
            let unit = unit_of(node, instance, slot, &usage)?;
            Some((unit, slot.as_str(), usage))
        })
}

#[cfg(test)]
mod tests;
