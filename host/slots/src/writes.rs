//! Writes of the slot task. They run concurrently with the task, which never waits for one, so that allocations without a write are
//! answered during writes. Device ids and slots that are being written stay reserved until the write has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::device_id::DeviceId;
use leafhost_core::instance::InstanceKey;
use leafhost_core::ports::{Change, InstanceStore, StoreError, Written};
use leafhost_core::wait::SourceEnded;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, timeout};

use super::SlotTask;
use super::model::claim::Chosen;
use super::model::slot_state::{Reason, SlotKey};
use super::queue::{Pending, Request};
use super::unwritable::Transition;

/// Time limit of a batch of writes; after it, their outcome is unknown.
pub(super) const WRITE: Duration = Duration::from_secs(5);

/// Applies a batch of changes within [`WRITE`].
pub(super) async fn apply(store: &dyn InstanceStore, changes: Vec<Change>) -> Vec<Written> {
    let keys: Vec<_> = changes.iter().map(Change::key).collect();
    let results = timeout(WRITE, store.apply(changes)).await;
    let unknown = |key: InstanceKey| {
        let seconds = WRITE.as_secs();
        let message = format!("the store did not answer within {seconds} seconds");
        Err(StoreError::Unknown { key, message })
    };
    results.unwrap_or_else(|_| keys.into_iter().map(unknown).collect())
}

/// Purpose of a write.
pub(super) enum Purpose {
    /// Claims of an allocation.
    Claim {
        request: Request,
        chosen: Vec<Chosen>,
    },
    /// Slots to release, and the request that waits for it.
    Release {
        slots: Vec<(DeviceId, SlotKey, Reason)>,
        then: Option<Request>,
    },
    /// Claims of slots that the kubelet was seen to have.
    Adopt { slot_keys: Vec<(DeviceId, SlotKey)> },
    /// Trial writes of Instances that could not be written before.
    Trial,
}

impl Purpose {
    /// Returns the device ids and slots that nothing else may change until the writes have ended.
    fn reserved(&self) -> Vec<(DeviceId, SlotKey)> {
        match self {
            Self::Claim { chosen, .. } => {
                let chosen = chosen.iter();
                chosen
                    .map(|one| (one.device_id.clone(), one.slot_key()))
                    .collect()
            }
            Self::Release { slots, .. } => {
                let slots = slots.iter();
                slots
                    .map(|(device_id, slot_key, _)| (device_id.clone(), slot_key.clone()))
                    .collect()
            }
            Self::Adopt { slot_keys } => slot_keys.clone(),
            Self::Trial => Vec::new(),
        }
    }
}

/// Write that has ended.
pub(super) struct Done {
    purpose: Purpose,
    /// Instances that were written, in the order of the results.
    keys: Vec<InstanceKey>,
    results: Vec<Written>,
}

/// Running writes, and the refused claims to release.
#[derive(Default)]
pub(super) struct Writes {
    pub running: JoinSet<Done>,
    /// Device ids and slots that are being written.
    reserved: BTreeSet<(DeviceId, SlotKey)>,
    /// Claims of refused allocations, whose slots no pod can have, with the time after which the claims are no longer tracked.
    pub refused_claims: BTreeMap<SlotKey, Instant>,
}

impl Writes {
    /// Returns true if the device id is being written.
    pub fn has_device_id(&self, device_id: &DeviceId) -> bool {
        self.reserved.iter().any(|(other, _)| other == device_id)
    }

    /// Returns true if the slot is being written.
    pub fn has_slot_key(&self, slot_key: &SlotKey) -> bool {
        self.reserved.iter().any(|(_, other)| other == slot_key)
    }

    /// Returns the ids of the slots that are being written.
    pub fn slots(&self) -> BTreeSet<String> {
        let reserved = self.reserved.iter();
        reserved.map(|(_, (_, slot))| slot.clone()).collect()
    }
}

impl SlotTask {
    /// Begins a write.
    pub(super) fn write(&mut self, purpose: Purpose, changes: Vec<Change>) {
        self.writes.reserved.extend(purpose.reserved());
        let store = Arc::clone(&self.store);
        let keys: Vec<_> = changes.iter().map(Change::key).collect();
        self.writes.running.spawn(async move {
            let results = apply(&*store, changes).await;
            Done {
                purpose,
                keys,
                results,
            }
        });
    }

    /// Begins the trial writes that are due.
    pub(super) fn try_to_write(&mut self) {
        let instances = Arc::clone(&self.instances.borrow());
        let own = self.name_index.instances.values();
        let trials = self.unwritable.trials(&instances, own, Instant::now());
        for change in trials {
            self.write(Purpose::Trial, vec![change]);
        }
    }

    /// Records in `unwritable` the results of one batch.
    fn learn(&mut self, purpose: &Purpose, keys: &[InstanceKey], results: &[Written]) {
        let is_trial = matches!(purpose, Purpose::Trial);
        let transition = self
            .unwritable
            .learn(keys, results, is_trial, Instant::now());
        match (transition, self.unwritable.problem()) {
            (Transition::Failed, Some(problem)) => {
                tracing::warn!(%problem, "cannot claim slots");
            }
            (Transition::Recovered, _) => {
                tracing::info!("slots can be claimed again");
                self.is_due = true;
            }
            _ => {}
        }
    }

    /// Records the results of a write.
    pub(super) async fn written(
        &mut self,
        done: Result<Done, JoinError>,
    ) -> Result<(), SourceEnded> {
        let Done {
            purpose,
            keys,
            results,
        } = done.map_err(|_| SourceEnded("a write of slots"))?;
        for reserved in purpose.reserved() {
            self.writes.reserved.remove(&reserved);
        }
        // Slots that were reserved may be free now.
        self.is_due |= !self.pending.waiting.is_empty();
        self.refresh();
        self.learn(&purpose, &keys, &results);
        match purpose {
            Purpose::Claim { request, chosen } => {
                let errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
                if errors.is_empty() {
                    self.grant(request, chosen).await;
                } else {
                    self.release_claims(&chosen);
                    self.retry_or_refuse(request, &chosen, &errors).await;
                }
            }
            Purpose::Release { slots, then } => {
                self.released(slots, results);
                if let Some(request) = then {
                    self.allocate(request).await;
                }
            }
            Purpose::Adopt { slot_keys } => self.adopted(slot_keys, results),
            Purpose::Trial => {}
        }
        let busy = std::mem::take(&mut self.pending.busy);
        self.retry(busy).await;
        Ok(())
    }

    /// Waits for the running writes. The task decides nothing more.
    pub(super) async fn finish(&mut self) -> Result<(), SourceEnded> {
        self.requests.close();
        self.pending = Pending::default();
        while let Some(done) = self.writes.running.join_next().await {
            self.written(done).await?;
        }
        while let Some(note) = self.ledger_writes.running.join_next().await {
            self.ledger_written(note)?;
        }
        Ok(())
    }
}
