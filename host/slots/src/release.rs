//! The slot task's looks at the kubelet's records, and what follows: slots come back, or are claimed again.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::allocation::{give_back, take};
use leafhost_core::ports::{Change, Written};
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use leafhost_core::unit::{Unit, unit_of};
use tokio::time::Instant;

use super::SlotTask;
use super::model::hold::{Place, Reason};
use super::model::snapshot::Snapshot;
use super::queue::Request;
use super::writes::Purpose;

/// After an event the records are looked at a little later: the events of one pod come together.
pub(super) const SOON: Duration = Duration::from_millis(150);
/// The first pause before records that could not be read are read again; the pauses grow up to [`EVERY`]. A kubelet that starts
/// answers in a moment, and nothing is offered before.
const RETRY: Duration = Duration::from_millis(10);
/// How often the records are read while this node has slots: PodResources sends no events.
const EVERY: Duration = Duration::from_secs(10);
/// The same while a pod has slots whose end no event tells: the kubelet removes its folder up to two seconds later.
const SILENT: Duration = Duration::from_millis(600);

impl SlotTask {
    /// Something happened: reads the records soon, if it can mean anything.
    pub(super) fn look_by(&mut self, at: Instant) {
        if self.ready.is_some()
            || !self.holds.by_unit.is_empty()
            || self.unanswered > 0
            || self.records.kubelet_run() != self.holds.kubelet_run()
        {
            self.look_at(at);
        }
    }

    pub(super) fn look_at(&mut self, at: Instant) {
        self.next_read = Some(self.next_read.map_or(at, |next| next.min(at)));
    }

    pub(super) fn read(&mut self) {
        self.next_read = None;
        // In the words of Akri's agent, for which its end-to-end tests look.
        tracing::debug!("reclaiming unused slots - start");
        let holds = self.holds.by_unit.values();
        let uids = holds.flat_map(|hold| hold.holder.uids()).collect();
        let open = self.holds.open(Instant::now());
        let records = Arc::clone(&self.records);
        self.reading
            .spawn(async move { records.read(uids, open).await });
    }

    /// Takes a snapshot in, and gives back what it frees.
    pub(super) fn see(&mut self, snapshot: &Snapshot) {
        for problem in &snapshot.problems {
            if !self.record_problems.contains(problem) {
                tracing::warn!(%problem, "cannot read all of the kubelet's records");
            }
        }
        self.record_problems.clone_from(&snapshot.problems);
        self.socket_missing = snapshot.is_socket_missing();
        let back = self.holds.see(snapshot, self.config.grace);
        if let Some(due) = self.holds.due() {
            self.look_at(due.max(Instant::now() + SOON));
        }
        self.holds.adopt(&self.node, &self.owners, snapshot);
        self.release(back, Vec::new());
        self.is_due = true;
        self.note_kubelet();
        if snapshot.is_answer() {
            self.ready = None;
            self.unanswered = 0;
        } else {
            self.unanswered = self.unanswered.saturating_add(1);
        }
        let wait = if self.unanswered > 0 {
            let doubled = 1_u32.checked_shl(self.unanswered - 1).unwrap_or(u32::MAX);
            RETRY.saturating_mul(doubled).min(EVERY)
        } else if snapshot.is_silent && !self.holds.by_unit.is_empty() {
            SILENT
        } else if !self.holds.by_unit.is_empty() {
            EVERY.min((self.config.grace / 4).max(SOON))
        } else if !snapshot.problems.is_empty() {
            EVERY
        } else {
            return;
        };
        self.look_at(Instant::now() + wait);
    }

    /// Begins to give slots back. The allocations of `then` are decided when that is written; they are returned if nothing needs to be.
    pub(super) fn release(
        &mut self,
        back: Vec<(Unit, Reason)>,
        then: Vec<Request>,
    ) -> Vec<Request> {
        let instances = Arc::clone(&self.instances.borrow());
        let mut changes = Vec::new();
        let mut slots = Vec::new();
        for (unit, reason) in back {
            let Some(hold) = self.holds.by_unit.get(&unit) else {
                continue;
            };
            let stored = hold.stored.as_ref();
            let Some(instance) = stored.and_then(|key| instances.instances.get(key)) else {
                self.holds.released(&unit);
                continue;
            };
            let place = (instance.key(), hold.slot.clone());
            if self.writes.has_unit(&unit) || self.writes.has_place(&place) {
                continue;
            }
            changes.push(Change::Update {
                key: instance.key(),
                uid: instance.metadata.uid.clone(),
                edits: vec![give_back(&hold.slot, &hold.usage)],
            });
            slots.push((unit, place, reason));
        }
        if changes.is_empty() {
            return then;
        }
        self.write(Purpose::Release { slots, then }, changes);
        Vec::new()
    }

    /// What came of giving slots back. What failed is tried again at the next snapshot.
    pub(super) fn released(&mut self, slots: Vec<(Unit, Place, Reason)>, results: Vec<Written>) {
        for (result, (unit, place, reason)) in results.into_iter().zip(slots) {
            let slot = place.1.as_str();
            match result {
                Ok(_) => {
                    tracing::info!(slot, reason = reason.as_str(), "slot is free again");
                    self.metrics.released(reason.as_str());
                    self.void.remove(&place);
                    self.holds.released(&unit);
                }
                Err(error) => {
                    tracing::warn!(slot, problem = chain(&error), "slot cannot be released");
                }
            }
        }
    }

    /// Begins to claim what the kubelet is seen to have and the store says of nobody: Instances that were made anew.
    pub(super) fn adopt(&mut self) {
        let instances = Arc::clone(&self.instances.borrow());
        if !instances.complete {
            return;
        }
        let (mut changes, mut places) = (Vec::new(), Vec::new());
        let mut waits = false;
        self.problems.clear();
        for (unit, hold) in &self.holds.by_unit {
            let owner = hold.owner(&self.owners);
            let Some(instance) = owner.and_then(|key| instances.instances.get(key)) else {
                continue;
            };
            // What is no slot of this Instance by the kubelet's name for it would never be found again.
            let unit_there = unit_of(&self.node, instance, &hold.slot, &hold.usage);
            let place = (instance.key(), hold.slot.clone());
            if hold.stored.is_some()
                || unit_there.as_ref() != Some(unit)
                || self.writes.has_place(&place)
            {
                continue;
            }
            match instance
                .spec
                .device_usage
                .get(&hold.slot)
                .map_or("", String::as_str)
            {
                // What somebody frees again and again is claimed at a later look at the records.
                "" if self.adopted.next(&place, Instant::now()).is_some() => {}
                "" if self.unwritable.has(&place.0) => waits = true,
                "" => {
                    changes.push(Change::Update {
                        key: instance.key(),
                        uid: instance.metadata.uid.clone(),
                        edits: take(instance, &hold.slot, &hold.usage),
                    });
                    places.push((unit.clone(), place));
                }
                other => drop(
                    self.problems.insert(Problem::SlotClaimedTwice {
                        slot: hold.slot.clone(),
                        holder: hold
                            .holder
                            .words()
                            .unwrap_or_else(|| "a pod that was just given it".to_owned()),
                        unit: unit.to_string(),
                        claim: other.to_owned(),
                    }),
                ),
            }
        }
        self.metrics.set_slot_conflicts(self.problems.len());
        if !changes.is_empty() {
            self.write(Purpose::Adopt { places }, changes);
        } else if !waits {
            self.adopt_problem = None;
        }
    }

    /// What came of claiming what the kubelet has.
    pub(super) fn adopted(&mut self, places: Vec<(Unit, Place)>, results: Vec<Written>) {
        let mut errors = Vec::new();
        for (result, (_, place)) in results.into_iter().zip(places) {
            match result {
                Ok(_) => self.adopted.wrote(place, Instant::now()),
                Err(error) => errors.push(error),
            }
        }
        self.adopt_problem = errors.first().map(|error| Problem::InstancesNotWritten {
            error: chain(error),
            more: errors.len() - 1,
        });
    }
}
