//! The slot task's looks at the kubelet's books, and what follows: slots come back, or are claimed again.

use std::sync::Arc;
use std::time::Duration;

use leafhost_core::instance::Edit;
use leafhost_core::ports::Change;
use leafhost_core::slot::DeviceUsage;
use tokio::time::Instant;

use super::SlotTask;
use super::holds::{Holder, Reason};
use super::look::Look;
use super::unit::Unit;
use crate::words;

/// After an event the books are looked at a little later: the events of one pod come together.
pub(super) const SOON: Duration = Duration::from_millis(150);
/// While this node has slots, the books are looked at so often: PodResources tells nothing by itself.
const EVERY: Duration = Duration::from_secs(10);

impl SlotTask {
    pub(super) fn look_by(&mut self, at: Instant) {
        // While nothing is held, no event can mean anything.
        if self.ready.is_some()
            || !self.holds.by_unit.is_empty()
            || self.books.incarnation() != self.holds.incarnation()
        {
            self.next_look = Some(self.next_look.map_or(at, |next| next.min(at)));
        }
    }

    pub(super) fn look(&mut self) {
        self.next_look = None;
        if !self.looking.is_empty() {
            self.next_look = Some(Instant::now() + SOON);
            return;
        }
        let uids = self
            .holds
            .by_unit
            .values()
            .filter_map(|hold| match &hold.holder {
                Holder::Seen { pods, .. } => Some(pods),
                Holder::Unseen(_) => None,
            })
            .flatten()
            .filter_map(|pod| pod.uid.clone())
            .collect();
        let books = Arc::clone(&self.books);
        self.looking.spawn(async move { books.look(uids).await });
    }

    /// Takes a look in, and gives back what it frees.
    pub(super) async fn see(&mut self, look: &Look) {
        self.look_problems.clone_from(&look.problems);
        let back = self.holds.see(look, self.config.grace);
        self.holds.adopt(&self.node, &self.owners, look);
        self.release(back).await;
        if look.listed.is_some() || look.incarnation.is_none() {
            self.ready = None;
        }
        let idle = self.holds.by_unit.is_empty();
        if self.ready.is_some() || !look.problems.is_empty() {
            self.look_by(Instant::now() + Duration::from_secs(1).min(EVERY));
        } else if !idle {
            let wait = EVERY.min((self.config.grace / 4).max(SOON));
            self.look_by(Instant::now() + wait);
        }
    }

    pub(super) async fn release(&mut self, back: Vec<(Unit, Reason)>) {
        let instances = Arc::clone(&self.instances.borrow());
        let mut changes = Vec::new();
        let mut released = Vec::new();
        for (unit, reason) in back {
            let Some(hold) = self.holds.by_unit.get(&unit) else {
                continue;
            };
            let owner = self.owners.instances.get(&hold.instance);
            let stored = owner
                .and_then(|key| instances.instances.get(key))
                .filter(|_| hold.stored);
            let Some(instance) = stored else {
                self.holds.released(&unit);
                continue;
            };
            changes.push(Change::Update {
                key: instance.key(),
                uid: instance.metadata.uid.clone(),
                edits: vec![Edit::Slot {
                    id: hold.slot.clone(),
                    held: hold.usage.clone(),
                    new: DeviceUsage::Unused,
                }],
            });
            released.push((unit, hold.slot.clone(), reason));
        }
        if changes.is_empty() {
            return;
        }
        let results = self.store.apply(changes).await;
        for (result, (unit, slot, reason)) in results.into_iter().zip(released) {
            match result {
                Ok(()) => {
                    tracing::info!(slot, reason = reason.as_str(), "slot is free again");
                    self.metrics.released(reason.as_str());
                    self.void.remove(&unit);
                    self.holds.released(&unit);
                }
                // It is tried again at the next look.
                Err(error) => {
                    tracing::warn!(slot, problem = words::of(&error), "slot cannot be released");
                }
            }
        }
    }

    /// Claims what the kubelet is seen to have and the store says of nobody: Instances that were made anew.
    pub(super) async fn adopt(&mut self) {
        let instances = Arc::clone(&self.instances.borrow());
        let mut changes = Vec::new();
        self.problems.clear();
        for (unit, hold) in &self.holds.by_unit {
            let owner = self.owners.instances.get(&hold.instance);
            let Some(instance) = owner.and_then(|key| instances.instances.get(key)) else {
                continue;
            };
            if hold.stored {
                continue;
            }
            match instance.spec.device_usage.get(&hold.slot).map_or("", String::as_str) {
                "" => changes.push(Change::Update {
                    key: instance.key(),
                    uid: instance.metadata.uid.clone(),
                    edits: vec![Edit::Slot {
                        id: hold.slot.clone(),
                        held: DeviceUsage::Unused,
                        new: hold.usage.clone(),
                    }],
                }),
                other => drop(self.problems.insert(format!(
                    "slot {} is held by {} ({unit}) and claimed by {other:?}: delete that pod, or the one of the claim",
                    hold.slot,
                    hold.holder.words().unwrap_or_default()
                ))),
            }
        }
        if !changes.is_empty() {
            for error in self
                .store
                .apply(changes)
                .await
                .into_iter()
                .filter_map(Result::err)
            {
                self.problems.insert(words::of(&error));
            }
            self.meet();
        }
    }
}
