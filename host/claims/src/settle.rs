//! Corrects the slots of prepared claims: an Instance may be recreated, another node may release a slot that both had, and two nodes may
//! have taken different slots for one claim.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::allocation::{give_back, take};
use leafhost_core::claim::record::{Record, RecordedDevice, Slot};
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet};
use leafhost_core::slice_device::device_name;
use leafhost_core::wait::changed;
use tokio::sync::watch;

use crate::Shared;
use crate::give_back::named;
use crate::model::{Settlement, settle};
use crate::prepare::slots;

impl Shared {
    /// Waits until the Instances show that the slots of a claim have to be corrected.
    pub async fn unsettled(&self, instances: &mut watch::Receiver<Arc<InstanceSet>>) {
        loop {
            changed(instances).await;
            let seen = Arc::clone(&instances.borrow_and_update());
            let report = self.report();
            let mut all = report.claims.iter().filter(|(_, record)| !record.is_over);
            if all.any(|(uid, record)| !self.settlements(uid, record, &seen).is_empty()) {
                return;
            }
        }
    }

    /// Corrects the slots of a prepared claim. Returns false if the caller must try again.
    pub async fn settle_claim(&self, uid: &str, record: &Record) -> bool {
        let instances = Arc::clone(&self.ports.store.instances().borrow());
        let settlements = self.settlements(uid, record, &instances);
        if settlements.is_empty() {
            return true;
        }
        let usage = self.usage(&named(uid, record));
        let mut now = record.clone();
        for (instance, settlement) in settlements {
            let Settlement {
                slots,
                take: new,
                give_back: old,
            } = settlement;
            let taken = new.iter().flat_map(|slot| take(&instance, slot, &usage));
            let given = old.iter().map(|slot| give_back(slot, &usage));
            let change = Change::edit(&instance, taken.chain(given).collect());
            if !(new.is_empty() && old.is_empty()) {
                let written = self.write(change).await;
                let is_done = written.is_ok();
                tracing::info!(
                    instance = instance.metadata.name,
                    ?slots,
                    is_done,
                    "settled the slots of a claim"
                );
                if !is_done {
                    // The Instances will show what to do instead, or the next attempt succeeds.
                    return false;
                }
            }
            let mut slots = slots.into_iter();
            let places = now.devices.iter_mut().flat_map(|device| &mut device.slots);
            for place in places.filter(|place| place.key() == instance.key()) {
                if let Some(slot) = slots.next() {
                    place.id = slot;
                    place.uid.clone_from(&instance.metadata.uid);
                }
            }
        }
        if now != *record
            && let Err(error) = self.save(uid, now).await
        {
            tracing::warn!(error, claim = uid, "cannot record the slots of a claim");
            return false;
        }
        true
    }

    /// Returns the corrections of a claim's slots by Instance, without Instances on which they are right or cannot be corrected.
    fn settlements(
        &self,
        uid: &str,
        record: &Record,
        instances: &InstanceSet,
    ) -> Vec<(Arc<Instance>, Settlement)> {
        let own = self.usage(&named(uid, record));
        let keys: BTreeSet<InstanceKey> = slots(record).map(Slot::key).collect();
        let known = keys.iter().filter_map(|key| instances.instances.get(key));
        let mut all = Vec::new();
        for instance in known {
            let key = instance.key();
            let had: Vec<_> = slots(record).filter(|slot| slot.key() == key).collect();
            // A device with the name of its Instance stands for any slot; a device with another name stands for one slot.
            let is_exact = |device: &&RecordedDevice| {
                let mut slots = device.slots.iter();
                slots.any(|slot| device_name(&slot.instance) != device.device)
            };
            let of_slots = record.devices.iter().filter(is_exact);
            let exact = of_slots.flat_map(|device| &device.slots);
            let exact: Vec<String> = exact
                .filter(|slot| slot.key() == key)
                .map(|slot| slot.id.clone())
                .collect();
            let reserved = self.state().reserved.clone();
            let reserved = reserved.into_iter().filter(|(other, _)| *other == key);
            let taken = reserved.map(|(_, slot)| slot).collect();
            let settlement = settle(instance, &own, had.len(), &exact, &taken);
            let is_whole = settlement.slots.len() == had.len();
            let ids: BTreeSet<&String> = had.iter().map(|slot| &slot.id).collect();
            let is_same = had.iter().all(|slot| slot.uid == instance.metadata.uid)
                && settlement.slots.iter().collect::<BTreeSet<_>>() == ids
                && settlement.take.is_empty()
                && settlement.give_back.is_empty();
            if is_whole && !is_same {
                all.push((Arc::clone(instance), settlement));
            }
        }
        all
    }
}
