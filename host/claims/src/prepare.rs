//! Prepares a claim: takes slots for its devices, saves its record and writes its CDI spec.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::claim::AllocatedClaim;
use leafhost_core::edits::Edits;
use leafhost_core::usable::usable;
use leafhost_kubelet::dra::{ClaimRef, PreparedDevice};
use tokio::time::{Instant, sleep, timeout_at};

use crate::Shared;
use crate::model::find;
use leafhost_core::claim::record::{Record, RecordedDevice, Slot};

/// Pause between two attempts to read a claim.
const AGAIN: Duration = Duration::from_millis(200);

impl Shared {
    pub async fn prepare(
        &self,
        claim: &ClaimRef,
        deadline: Instant,
    ) -> Result<Vec<PreparedDevice>, String> {
        let report = self.report();
        if let Some(why) = report.unreadable.get(&claim.uid) {
            return Err(format!(
                "cannot read the record of this claim ({why}); delete the pod, which releases the claim"
            ));
        }
        let record = match report.claims.get(&claim.uid) {
            Some(record) if !record.is_over => self.refresh(&claim.uid, record, deadline).await?,
            // The claim is new, or its slots are being released; in that case it gets these or others again.
            _ => {
                let allocated = self.read(claim, deadline).await?;
                self.take_all(claim, &allocated, deadline).await?
            }
        };
        self.answer(&claim.uid, &record).await
    }

    /// Returns the id of the current boot, or an empty text if it is unknown.
    fn boot(&self) -> String {
        let boot = self.ports.devices.borrow().boot;
        boot.map(|boot| boot.id()).unwrap_or_default()
    }

    /// Updates the container edits of a prepared claim, since its devices may have other device nodes now. In the same boot, a missing
    /// device keeps its edits; after a reboot, waits for the device until `deadline`.
    async fn refresh(
        &self,
        uid: &str,
        record: &Arc<Record>,
        deadline: Instant,
    ) -> Result<Arc<Record>, String> {
        let mut devices = self.ports.devices.clone();
        loop {
            let view = Arc::clone(&devices.borrow_and_update());
            let instances = Arc::clone(&self.ports.store.instances().borrow());
            let mut now = Record {
                boot: self.boot(),
                ..Record::clone(record)
            };
            let is_same = now.boot == record.boot;
            let mut missing = None;
            for device in &mut now.devices {
                let found = find(&self.node, &device.pool, &device.device, &instances);
                let usable = found.and_then(|found| {
                    let usable = usable(&self.node, &view, &found.instance).ok()?;
                    Some((usable, found.instance))
                });
                match usable {
                    Some((usable, instance)) => {
                        device.edits = usable.edits(&instance, &device.properties);
                    }
                    None if is_same => {}
                    None => missing = Some(device.device.clone()),
                }
            }
            if let Some(device) = missing {
                if matches!(timeout_at(deadline, devices.changed()).await, Ok(Ok(()))) {
                    continue;
                }
                return Err(format!(
                    "device {device} has not been seen, or does not work, since the node was started"
                ));
            }
            if now == **record {
                return Ok(Arc::clone(record));
            }
            return self.save(uid, now).await;
        }
    }

    /// Reads the claim; tries again after transient errors.
    async fn read(&self, claim: &ClaimRef, deadline: Instant) -> Result<AllocatedClaim, String> {
        let ClaimRef {
            namespace,
            name,
            uid,
        } = claim;
        loop {
            match self.ports.reader.read(namespace, name).await {
                Ok(Some(found)) if found.uid == *uid => return Ok(found),
                Ok(Some(_)) => return Err("another claim now has the name".to_owned()),
                Ok(None) => {
                    return Err("the claim is gone, or nothing is allocated to it".to_owned());
                }
                Err(error) if error.is_transient && Instant::now() + AGAIN < deadline => {
                    sleep(AGAIN).await;
                }
                Err(error) => return Err(format!("cannot read the claim: {}", error.message)),
            }
        }
    }

    /// Takes all devices of a claim, or none, and saves the record.
    async fn take_all(
        &self,
        claim: &ClaimRef,
        allocated: &AllocatedClaim,
        deadline: Instant,
    ) -> Result<Arc<Record>, String> {
        let mut record = Record {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            boot: self.boot(),
            devices: Vec::new(),
            is_over: false,
        };
        let saved = match self.fill(&mut record, claim, allocated, deadline).await {
            Ok(()) => self.save(&claim.uid, record.clone()).await,
            Err(error) => Err(error),
        };
        if saved.is_ok() {
            // Meanwhile, another node may have taken a slot for this claim.
            self.work.notify_one();
        } else {
            for slot in slots(&record) {
                // A slot that cannot be released now is found later: no record names it.
                self.give_back(claim, slot).await;
            }
        }
        saved
    }

    /// Takes the devices of a claim, one after the other. Slots taken before an error are in the record.
    async fn fill(
        &self,
        record: &mut Record,
        claim: &ClaimRef,
        allocated: &AllocatedClaim,
        deadline: Instant,
    ) -> Result<(), String> {
        let mut others = BTreeSet::new();
        for one in &allocated.results {
            record.devices.push(RecordedDevice {
                request: one.request.clone(),
                pool: one.pool.clone(),
                device: one.device.clone(),
                share: one.share.clone(),
                slots: Vec::new(),
                properties: allocated.properties(one),
                edits: Edits::default(),
            });
            // A request with admin access takes no slot, but needs the device.
            for _ in 0..one.slots.max(1) {
                let taken = self.take(claim, one, &others, deadline).await?;
                let slot = taken.slot.iter();
                others.extend(slot.map(|slot| (slot.key(), slot.id.clone())));
                if let Some(device) = record.devices.last_mut() {
                    device.edits = taken.usable.edits(&taken.instance, &device.properties);
                    device.slots.extend(taken.slot);
                }
            }
        }
        Ok(())
    }

    async fn answer(&self, uid: &str, record: &Record) -> Result<Vec<PreparedDevice>, String> {
        let names = self.ports.specs.write(uid, &edits(record)).await?;
        let devices = record.devices.iter().map(|device| PreparedDevice {
            requests: vec![device.request.clone()],
            pool: device.pool.clone(),
            device: device.device.clone(),
            cdi: names
                .get(&device.cdi_device())
                .cloned()
                .into_iter()
                .collect(),
            share: device.share.clone(),
        });
        Ok(devices.collect())
    }
}

/// Returns the slots of a claim.
pub fn slots(record: &Record) -> impl Iterator<Item = &Slot> {
    record.devices.iter().flat_map(|device| &device.slots)
}

/// Returns the container edits of a claim by CDI device. A device without edits is included, since container runtimes reject unknown
/// devices.
pub fn edits(record: &Record) -> BTreeMap<String, Edits> {
    let devices = record.devices.iter();
    devices
        .map(|device| (device.cdi_device(), device.edits.clone()))
        .collect()
}
