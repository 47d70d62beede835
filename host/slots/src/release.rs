//! Releases slots.

use std::sync::Arc;

use leafhost_core::allocation::release;
use leafhost_core::device_id::DeviceId;
use leafhost_core::ports::{Change, Written};
use leafhost_core::text::chain;

use super::SlotTask;
use super::model::slot_state::{Reason, SlotKey};
use super::queue::Request;
use super::writes::Purpose;

impl SlotTask {
    /// Begins to release slots. The request `then` is decided after the write; it is returned if nothing is to be written.
    pub(super) fn release(
        &mut self,
        back: Vec<(DeviceId, Reason)>,
        then: Option<Request>,
    ) -> Option<Request> {
        let instances = Arc::clone(&self.instances.borrow());
        let mut changes = Vec::new();
        let mut slots = Vec::new();
        for (device_id, reason) in back {
            let Some(state) = self.slot_table.by_device_id.get(&device_id) else {
                continue;
            };
            let stored = state.stored.as_ref();
            let Some(instance) = stored.and_then(|key| instances.instances.get(key)) else {
                self.slot_table.released(&device_id);
                continue;
            };
            let slot_key = (instance.key(), state.slot.clone());
            if self.writes.has_device_id(&device_id) || self.writes.has_slot_key(&slot_key) {
                continue;
            }
            let edits = release(&self.node, instance, &state.slot, &state.usage);
            changes.push(Change::edit(instance, edits));
            slots.push((device_id, slot_key, reason));
        }
        if changes.is_empty() {
            return then;
        }
        self.write(Purpose::Release { slots, then }, changes);
        None
    }

    /// Records the results of releases. Failed ones are tried again at the next snapshot.
    pub(super) fn released(
        &mut self,
        slots: Vec<(DeviceId, SlotKey, Reason)>,
        results: Vec<Written>,
    ) {
        for (result, (device_id, slot_key, reason)) in results.into_iter().zip(slots) {
            let slot = slot_key.1.as_str();
            match result {
                Ok(_) => {
                    tracing::info!(slot, reason = reason.as_str(), "slot is free again");
                    self.metrics.released(reason.as_str());
                    self.writes.refused_claims.remove(&slot_key);
                    self.slot_table.released(&device_id);
                }
                Err(error) => {
                    tracing::warn!(slot, problem = chain(&error), "cannot release a slot");
                }
            }
        }
    }
}
