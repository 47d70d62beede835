//! Claims slots that the kubelet has assigned although their Instances record no claim, as when an Instance was recreated. A slot that
//! another node has claimed is reported as a conflict.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::allocation::take;
use leafhost_core::device_id::{DeviceId, device_id_of};
use leafhost_core::ports::{Change, Written};
use leafhost_core::problem::Problem;
use leafhost_core::text::chain;
use leafhost_core::write_limiter::WriteLimiter;
use tokio::time::Instant;

use super::SlotTask;
use super::model::slot_state::SlotKey;
use super::writes::Purpose;

/// Recent claims of such slots, with failures and conflicts.
#[derive(Default)]
pub(super) struct Adoptions {
    /// Limiter of repeated claims of the same slot.
    done: WriteLimiter<SlotKey>,
    /// Reason why the last claims could not be written.
    pub problem: Option<Problem>,
    /// Slots that another node claims although a pod of this node has them.
    pub conflicts: BTreeSet<Problem>,
}

impl SlotTask {
    /// Begins to claim the slots that the kubelet has assigned and whose Instances record no claim; collects `conflicts`.
    pub(super) fn adopt(&mut self) {
        let instances = Arc::clone(&self.instances.borrow());
        if !instances.complete {
            return;
        }
        let (mut changes, mut slot_keys) = (Vec::new(), Vec::new());
        let mut waits = false;
        self.adoptions.conflicts.clear();
        for (device_id, state) in &self.slot_table.by_device_id {
            let owner = state.owner(&self.name_index);
            let Some(instance) = owner.and_then(|key| instances.instances.get(key)) else {
                continue;
            };
            // A device id that does not map back to this slot would never be found in the Instance again.
            let device_id_there = device_id_of(&self.node, instance, &state.slot, &state.usage);
            let slot_key = (instance.key(), state.slot.clone());
            if state.stored.is_some()
                || device_id_there.as_ref() != Some(device_id)
                || self.writes.has_slot_key(&slot_key)
            {
                continue;
            }
            match instance.usage(&state.slot) {
                // Another writer frees this slot repeatedly: it is claimed again at a later snapshot.
                "" if self
                    .adoptions
                    .done
                    .next(&slot_key, Instant::now())
                    .is_some() => {}
                "" if self.unwritable.has(&slot_key.0) => waits = true,
                "" => {
                    let edits = take(instance, &state.slot, &state.usage);
                    changes.push(Change::edit(instance, edits));
                    slot_keys.push((device_id.clone(), slot_key));
                }
                other => drop(
                    self.adoptions.conflicts.insert(Problem::SlotClaimedTwice {
                        slot: state.slot.clone(),
                        holder: state
                            .holder
                            .describe()
                            .unwrap_or_else(|| "a pod that was just given it".to_owned()),
                        device_id: device_id.to_string(),
                        claim: other.to_owned(),
                    }),
                ),
            }
        }
        self.metrics
            .set_slot_conflicts(self.adoptions.conflicts.len());
        if !changes.is_empty() {
            self.write(Purpose::Adopt { slot_keys }, changes);
        } else if !waits {
            self.adoptions.problem = None;
        }
    }

    /// Records the results of the claims that [`Self::adopt`] began.
    pub(super) fn adopted(&mut self, slot_keys: Vec<(DeviceId, SlotKey)>, results: Vec<Written>) {
        let mut errors = Vec::new();
        for (result, (_, slot_key)) in results.into_iter().zip(slot_keys) {
            match result {
                Ok(_) => self.adoptions.done.record(slot_key, Instant::now()),
                Err(error) => errors.push(error),
            }
        }
        self.adoptions.problem = errors.first().map(|error| Problem::InstancesNotWritten {
            error: chain(error),
            more: errors.len() - 1,
        });
    }
}
