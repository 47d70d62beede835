//! Releases the slots of claims that have ended, and restores the CDI specs of claims in use.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::claim::Allocated;
use leafhost_core::claim::record::{Record, Slot};
use leafhost_core::slot::DeviceUsage;
use leafhost_kubelet::dra::ClaimRef;
use tokio::time::{Instant, sleep};

use crate::Shared;
use crate::model::find;
use crate::prepare::{edits, slots};

/// Pause between two attempts to release slots.
const AGAIN: Duration = Duration::from_secs(1);
/// Interval at which CDI specs are checked, since other programs may remove them.
const BACKSTOP: Duration = Duration::from_mins(1);

impl Shared {
    /// Ends a claim without the API server: [`Self::keep`] releases its slots later.
    pub async fn unprepare(&self, claim: &ClaimRef) -> Result<(), String> {
        let uid = &claim.uid;
        self.ports.specs.remove(uid).await?;
        let report = self.report();
        if report.unreadable.contains_key(uid) {
            self.ports.records.remove(uid).await?;
            self.edit(|report| drop(report.unreadable.remove(uid)));
        }
        let known = report.claims.get(uid);
        if let Some(record) = known.filter(|record| !record.is_over) {
            let over = Record {
                is_over: true,
                ..Record::clone(record)
            };
            if let Err(error) = self.ports.records.save(uid, &over).await {
                // A pod must not wait for disk space. The removal needs none, and `end_unknown` finds slots without a record.
                tracing::warn!(error, claim = uid, "cannot record the end of a claim");
                self.ports.records.remove(uid).await?;
            }
            self.edit(|report| drop(report.claims.insert(uid.clone(), Arc::new(over))));
        }
        self.work.notify_one();
        Ok(())
    }

    /// Releases the slots of claims that have ended and restores missing CDI specs until the future is dropped.
    pub async fn keep(&self) {
        let mut is_logged = false;
        let mut restore_at = Instant::now();
        let mut abandoned = HashMap::new();
        let mut instances = self.ports.store.instances();
        loop {
            instances.mark_unchanged();
            let is_done = match self.load().await {
                Ok(()) => {
                    let mut is_done = self.advance_all().await;
                    is_done &= self.end_unknown().await;
                    if restore_at <= Instant::now() {
                        let is_restored = self.restore().await;
                        if is_restored {
                            self.end_abandoned(&mut abandoned).await;
                        }
                        let pause = if is_restored { BACKSTOP } else { AGAIN };
                        restore_at = Instant::now() + pause;
                        is_done &= is_restored;
                    }
                    is_done
                }
                Err(error) => {
                    if !std::mem::replace(&mut is_logged, true) {
                        tracing::warn!(error, "cannot prepare or release claims");
                    }
                    false
                }
            };
            let pause = if is_done { BACKSTOP } else { AGAIN };
            tokio::select! {
                () = self.work.notified() => {}
                () = self.unsettled(&mut instances) => {}
                () = sleep(pause) => {}
            }
        }
    }

    /// Writes missing CDI specs of claims, and removes specs that belong to no claim. Returns false if some are left because the Instances
    /// are not known yet, or because other work on their claims is in progress.
    async fn restore(&self) -> bool {
        let written = match self.ports.specs.all().await {
            Ok(written) => written,
            Err(error) => {
                tracing::warn!(error, "cannot list the CDI specs of claims");
                return true;
            }
        };
        let unknown: BTreeSet<String> = self
            .unknown()
            .into_iter()
            .map(|(claim, _)| claim.uid)
            .collect();
        // While a claim has a slot, its pod may run; before the Instances are known, any claim may have one.
        let mut is_done = self.ports.store.instances().borrow().is_known();
        let superfluous = written
            .iter()
            .filter(|uid| is_done && !unknown.contains(*uid));
        for uid in superfluous.collect::<Vec<_>>() {
            let Ok(_turn) = self.turn(uid).try_lock_owned() else {
                is_done = false;
                continue;
            };
            let report = self.report();
            let is_known = report.claims.contains_key(uid) || report.unreadable.contains_key(uid);
            if !is_known && let Err(error) = self.ports.specs.remove(uid).await {
                tracing::warn!(error, claim = uid, "cannot remove the devices of a claim");
            }
        }
        for uid in self.report().claims.keys() {
            let Ok(_turn) = self.turn(uid).try_lock_owned() else {
                is_done = false;
                continue;
            };
            let now = self.report().claims.get(uid).cloned();
            let Some(record) = now.filter(|record| !record.is_over) else {
                continue;
            };
            if let Err(error) = self.ports.specs.write(uid, &edits(&record)).await {
                tracing::warn!(error, claim = uid, "cannot write the devices of a claim");
            }
        }
        is_done
    }

    /// Releases the slots of claims that have ended, and corrects those of the others. Returns false if some are left.
    async fn advance_all(&self) -> bool {
        let mut is_done = true;
        for uid in self.report().claims.keys() {
            let Ok(_turn) = self.turn(uid).try_lock_owned() else {
                is_done = false;
                continue;
            };
            let now = self.report().claims.get(uid).cloned();
            is_done &= match now {
                Some(record) if record.is_over => self.end(uid, &record).await,
                Some(record) => self.settle_claim(uid, &record).await,
                None => true,
            };
        }
        is_done
    }

    /// Releases the slots of a claim, and removes its record. Returns false if anything is left.
    async fn end(&self, uid: &str, record: &Record) -> bool {
        let mut is_given = true;
        let claim = named(uid, record);
        for slot in slots(record) {
            is_given &= self.give_back(&claim, slot).await;
        }
        let is_done = is_given && self.ports.records.remove(uid).await.is_ok();
        if is_done {
            self.edit(|report| drop(report.claims.remove(uid)));
        }
        is_done
    }

    /// Releases the slots of claims that have no record, and that are gone or have other devices: the agent died before it saved the
    /// record, and the kubelet has not asked again. Returns false if some are left.
    async fn end_unknown(&self) -> bool {
        let mut is_done = true;
        for (claim, slot) in self.unknown() {
            // While the claim is being prepared, the slot belongs to it.
            let Ok(_turn) = self.turn(&claim.uid).try_lock_owned() else {
                continue;
            };
            let is_unknown = self.unknown().contains(&(claim.clone(), slot.clone()));
            let is_over = is_unknown && self.is_over(&claim, &slot).await;
            if is_over {
                is_done &= self.give_back(&claim, &slot).await;
            }
        }
        is_done
    }

    /// Returns true if the API server shows that a claim is gone, or that it does not have the device of `slot`.
    async fn is_over(&self, claim: &ClaimRef, slot: &Slot) -> bool {
        let instances = Arc::clone(&self.ports.store.instances().borrow());
        let is_of_slot = |one: &Allocated| {
            let found = find(&self.node, &one.pool, &one.device, &instances);
            found.is_some_and(|found| found.instance.key() == slot.key())
        };
        self.lacks(claim, is_of_slot).await == Some(true)
    }

    /// Returns true if a claim is gone, or has no device that `is_it` accepts; `None` if the claim cannot be read.
    pub async fn lacks(
        &self,
        claim: &ClaimRef,
        is_it: impl Fn(&Allocated) -> bool,
    ) -> Option<bool> {
        let found = self.ports.reader.read(&claim.namespace, &claim.name).await;
        let found = found.ok()?.filter(|found| found.uid == claim.uid);
        Some(found.is_none_or(|found| !found.results.iter().any(is_it)))
    }

    /// Returns the slots that claims have through this node and that no record names. Omits claims whose record is unreadable.
    fn unknown(&self) -> Vec<(ClaimRef, Slot)> {
        let instances = Arc::clone(&self.ports.store.instances().borrow());
        let report = self.report();
        let mut unknown = Vec::new();
        for (key, instance) in &instances.instances {
            for (id, text) in &instance.spec.device_usage {
                let Ok(DeviceUsage::Claim {
                    namespace,
                    name,
                    uid,
                    node,
                }) = text.parse()
                else {
                    continue;
                };
                let record = report.claims.get(&uid);
                let is_known = node != *self.node
                    || record.is_some_and(|record| slots(record).any(|slot| slot.id == *id))
                    || report.unreadable.contains_key(&uid);
                if is_known {
                    continue;
                }
                let slot = Slot {
                    namespace: key.namespace.clone(),
                    instance: key.name.clone(),
                    uid: instance.metadata.uid.clone(),
                    id: id.clone(),
                };
                let claim = ClaimRef {
                    namespace,
                    name,
                    uid,
                };
                unknown.push((claim, slot));
            }
        }
        unknown
    }
}

pub fn named(uid: &str, record: &Record) -> ClaimRef {
    ClaimRef {
        namespace: record.namespace.clone(),
        name: record.name.clone(),
        uid: uid.to_owned(),
    }
}
