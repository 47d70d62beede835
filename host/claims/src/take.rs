//! Takes free slots for the devices of a claim.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::allocation::{give_back, take};
use leafhost_core::claim::Allocated;
use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::Change;
use leafhost_core::slot::DeviceUsage;
use leafhost_core::text::{chain, few};
use leafhost_core::usable::{Unusable, Usable, usable};
use leafhost_kubelet::dra::ClaimRef;
use tokio::time::{Instant, sleep, timeout_at};

use crate::Shared;
use crate::model::{Found, choose, find};
use leafhost_core::claim::record::Slot;

/// Longest wait for a missing device: this node may see it some moments later than the scheduler.
const APPEARS: Duration = Duration::from_secs(5);
/// Pause before a failed write is tried again.
const AGAIN: Duration = Duration::from_millis(250);
/// Interval between two checks for a free slot if no event announces one.
const LOOK: Duration = Duration::from_secs(1);
/// Maximum number of holders that an error names.
const MOST_HOLDERS: usize = 5;

/// Device that was taken.
pub struct TakenDevice {
    pub usable: Usable,
    pub instance: Arc<Instance>,
    /// Slot taken; none for a request with admin access.
    pub slot: Option<Slot>,
}

impl Shared {
    /// Takes a slot of a device for a claim that already has the slots `others`.
    pub async fn take(
        &self,
        claim: &ClaimRef,
        allocated: &Allocated,
        others: &BTreeSet<(InstanceKey, String)>,
        deadline: Instant,
    ) -> Result<TakenDevice, String> {
        let own = self.usage(claim);
        let appears = deadline.min(Instant::now() + APPEARS);
        loop {
            let mut instances = self.ports.store.instances();
            let mut devices = self.ports.devices.clone();
            let seen = Arc::clone(&instances.borrow_and_update());
            let view = Arc::clone(&devices.borrow_and_update());
            let changed = async {
                tokio::select! {
                    changed = instances.changed() => changed.is_ok(),
                    changed = devices.changed() => changed.is_ok(),
                }
            };
            let Allocated { pool, device, .. } = allocated;
            let missing = match find(&self.node, pool, device, &seen) {
                None => format!(
                    "device {device} of pool {pool} is not on node {}: it has gone since it was allocated; delete the claim or the pod, and another device is allocated",
                    self.node
                ),
                Some(found) => match usable(&self.node, &view, &found.instance) {
                    Ok(usable) => {
                        let slot = if allocated.is_admin {
                            None
                        } else {
                            self.claim_slot(&found, &own, others, deadline).await?
                        };
                        if slot.is_some() || allocated.is_admin {
                            return Ok(TakenDevice {
                                usable,
                                instance: found.instance,
                                slot,
                            });
                        }
                        // Another claim was first, or no slot is free yet.
                        let now = Instant::now();
                        if now >= deadline {
                            return Err(none_free(&found));
                        }
                        wait(deadline.min(now + LOOK), changed).await;
                        continue;
                    }
                    Err(Unusable::Unhealthy { why, .. }) => {
                        return Err(format!(
                            "device {device} of pool {pool} is not healthy: {why}"
                        ));
                    }
                    Err(Unusable::Gone) => format!("device {device} of pool {pool} is missing"),
                    Err(Unusable::NotSeen) => format!(
                        "device {device} of pool {pool} has not been seen since the agent started"
                    ),
                },
            };
            if !wait(appears, changed).await {
                return Err(missing);
            }
        }
    }

    /// Takes a slot of an Instance. Returns `None` if no slot is free now, or if another writer was first.
    async fn claim_slot(
        &self,
        found: &Found,
        own: &DeviceUsage,
        others: &BTreeSet<(InstanceKey, String)>,
        deadline: Instant,
    ) -> Result<Option<Slot>, String> {
        let key = found.instance.key();
        let (slot, is_had) = {
            let mut state = self.state();
            let taken = state.reserved.union(others);
            let taken = taken.filter(|(other, _)| *other == key);
            let taken = taken.map(|(_, slot)| slot.clone()).collect();
            let Some((slot, is_had)) = choose(found, own, &taken) else {
                return Ok(None);
            };
            state.reserved.insert((key.clone(), slot.clone()));
            (slot, is_had)
        };
        // The reservation ends with this call: once the slot is taken, the store shows it.
        let _reserved = Reserved {
            shared: self,
            place: (key.clone(), slot.clone()),
        };
        let uid = &found.instance.metadata.uid;
        if !is_had {
            let change = Change::edit(&found.instance, take(&found.instance, &slot, own));
            loop {
                match self.write(change.clone()).await {
                    Ok(()) => break,
                    Err(error) if error.is_outdated() => return Ok(None),
                    Err(error) if Instant::now() + AGAIN >= deadline => {
                        return Err(format!("cannot take slot {slot}: {}", chain(&error)));
                    }
                    Err(_) => sleep(AGAIN).await,
                }
            }
        }
        Ok(Some(Slot {
            namespace: key.namespace,
            instance: key.name,
            uid: uid.clone(),
            id: slot,
        }))
    }

    pub async fn write(&self, change: Change) -> Result<(), leafhost_core::ports::StoreError> {
        let written = self.ports.store.apply(vec![change]).await;
        written
            .into_iter()
            .next()
            .map_or(Ok(()), |one| one.map(drop))
    }

    /// Returns the usage value of a claim's slot.
    pub fn usage(&self, claim: &ClaimRef) -> DeviceUsage {
        DeviceUsage::Claim {
            namespace: claim.namespace.clone(),
            name: claim.name.clone(),
            uid: claim.uid.clone(),
            node: self.node.to_string(),
        }
    }

    /// Releases a slot of a claim. Returns false if the caller must try again.
    pub async fn give_back(&self, claim: &ClaimRef, slot: &Slot) -> bool {
        let usage = self.usage(claim);
        let change = Change::Update {
            key: slot.key(),
            uid: slot.uid.clone(),
            edits: vec![give_back(&slot.id, &usage)],
        };
        match self.write(change).await {
            Ok(()) => {
                tracing::info!(slot = slot.id, reason = "unprepared", "slot is free again");
                true
            }
            // Nothing is left to release unless the store still shows the slot as this claim's.
            Err(error) if error.is_outdated() => !self.has(slot, &usage),
            Err(error) => {
                let problem = chain(&error);
                tracing::debug!(slot = slot.id, problem, "cannot release the slot yet");
                false
            }
        }
    }

    /// Returns true if the store shows the slot as this claim's.
    fn has(&self, slot: &Slot, usage: &DeviceUsage) -> bool {
        let instances = self.ports.store.instances();
        let instances = instances.borrow();
        let instance = instances.instances.get(&slot.key());
        instance.is_some_and(|instance| {
            let found = instance.usage(&slot.id).parse();
            instance.metadata.uid == slot.uid && found.is_ok_and(|one: DeviceUsage| one == *usage)
        })
    }
}

/// Reservation of a slot until this value is dropped.
struct Reserved<'a> {
    shared: &'a Shared,
    place: (InstanceKey, String),
}

impl Drop for Reserved<'_> {
    fn drop(&mut self) {
        self.shared.state().reserved.remove(&self.place);
    }
}

fn none_free(found: &Found) -> String {
    let name = &found.instance.metadata.name;
    let held = match choose(found, &DeviceUsage::Unused, &BTreeSet::new()) {
        Some(_) => "others take them".to_owned(),
        None => few(found.holders(), MOST_HOLDERS),
    };
    format!(
        "no slot of Instance {name} is free ({held}); leafhost status slots shows the pods that have them"
    )
}

/// Waits for a change. Returns false if `changed` reports none before the deadline.
async fn wait(deadline: Instant, changed: impl Future<Output = bool>) -> bool {
    timeout_at(deadline, changed).await.unwrap_or(false)
}
