//! Releases slots.

use std::sync::Arc;

use leafhost_core::ports::{Change, Written};
use leafhost_core::text::chain;
use leafhost_core::unit::Unit;

use super::SlotTask;
use super::holders::release;
use super::model::hold::{Place, Reason};
use super::queue::Request;
use super::writes::Purpose;

impl SlotTask {
    /// Begins to release slots. The requests of `then` are decided after the write; they are returned if nothing is to be written.
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
                edits: release(&self.node, instance, &hold.slot, &hold.usage),
            });
            slots.push((unit, place, reason));
        }
        if changes.is_empty() {
            return then;
        }
        self.write(Purpose::Release { slots, then }, changes);
        Vec::new()
    }

    /// Records the results of releases. Failed ones are tried again at the next snapshot.
    pub(super) fn released(&mut self, slots: Vec<(Unit, Place, Reason)>, results: Vec<Written>) {
        for (result, (unit, place, reason)) in results.into_iter().zip(slots) {
            let slot = place.1.as_str();
            match result {
                Ok(_) => {
                    tracing::info!(slot, reason = reason.as_str(), "slot is free again");
                    self.metrics.released(reason.as_str());
                    self.writes.void.remove(&place);
                    self.holds.released(&unit);
                }
                Err(error) => {
                    tracing::warn!(slot, problem = chain(&error), "slot cannot be released");
                }
            }
        }
    }
}
