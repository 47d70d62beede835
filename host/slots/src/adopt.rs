//! Claims slots that the kubelet has assigned although no Instance records them for this node: the Instance was created anew, or another
//! node has claimed the slot.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::allocation::take;
use leafhost_core::ports::{Change, Written};
use leafhost_core::problem::Problem;
use leafhost_core::repeats::Repeats;
use leafhost_core::text::chain;
use leafhost_core::unit::{Unit, unit_of};
use tokio::time::Instant;

use super::SlotTask;
use super::model::hold::Place;
use super::writes::Purpose;

/// Progress and failures of claiming such slots.
#[derive(Default)]
pub(super) struct Adoptions {
    /// Slots that were claimed, with the time before which none is claimed again.
    done: Repeats<Place>,
    /// Reason why the last claims could not be written.
    pub problem: Option<Problem>,
    /// Slots that another node claims although a pod of this node has them.
    pub conflicts: BTreeSet<Problem>,
}

impl SlotTask {
    /// Begins to claim the slots that the kubelet has and whose Instances, created anew, record no holder.
    pub(super) fn adopt(&mut self) {
        let instances = Arc::clone(&self.instances.borrow());
        if !instances.complete {
            return;
        }
        let (mut changes, mut places) = (Vec::new(), Vec::new());
        let mut waits = false;
        self.adoptions.conflicts.clear();
        for (unit, hold) in &self.holds.by_unit {
            let owner = hold.owner(&self.owners);
            let Some(instance) = owner.and_then(|key| instances.instances.get(key)) else {
                continue;
            };
            // A unit that does not map back to this slot would never be found in the Instance again.
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
                // Another writer frees this slot repeatedly: it is claimed again at a later snapshot.
                "" if self.adoptions.done.next(&place, Instant::now()).is_some() => {}
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
                    self.adoptions.conflicts.insert(Problem::SlotClaimedTwice {
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
        self.metrics
            .set_slot_conflicts(self.adoptions.conflicts.len());
        if !changes.is_empty() {
            self.write(Purpose::Adopt { places }, changes);
        } else if !waits {
            self.adoptions.problem = None;
        }
    }

    /// Records the results of the claims that [`Self::adopt`] began.
    pub(super) fn adopted(&mut self, places: Vec<(Unit, Place)>, results: Vec<Written>) {
        let mut errors = Vec::new();
        for (result, (_, place)) in results.into_iter().zip(places) {
            match result {
                Ok(_) => self.adoptions.done.wrote(place, Instant::now()),
                Err(error) => errors.push(error),
            }
        }
        self.adoptions.problem = errors.first().map(|error| Problem::InstancesNotWritten {
            error: chain(error),
            more: errors.len() - 1,
        });
    }
}
