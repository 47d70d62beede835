//! Writes the pods of this node that have slots, and the number of used slots, to the status of each Instance, for users of kubectl.
//!
//! The task compares the reports on slots and tickets with the Instances and writes the difference, to each Instance at most once a second.
//! A scheduler leaves a slot with a holder to the agent; no other decision depends on the holders.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::instance::{Edit, Instance, InstanceKey, MAX_HOLDER, MAX_HOLDERS};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore};
use leafhost_core::text::{abridge, chain};
use leafhost_core::wait::until;
use tokio::sync::watch;
use tokio::time::{Instant, sleep};

use crate::report::{SlotReport, SlotView};
use crate::tickets::TicketReport;
use crate::writes::apply;

/// Minimum time between two batches of writes, and so between two writes of an Instance.
const SPACING: Duration = Duration::from_secs(1);
/// Maximum number of Instances written in one batch.
const TOGETHER: usize = 50;
/// Delay before this node corrects the number of used slots; the node whose slots have changed writes it first.
const OTHERS: Duration = Duration::from_secs(5);
/// Delay before this task removes a holder; the write that releases the slot removes it first.
const RELEASE: Duration = Duration::from_secs(2);

/// Maps slot ids to the pods that have them.
type SlotHolders = BTreeMap<String, String>;

/// Task that publishes the holders of this node's slots.
pub struct HoldersTask {
    node: Arc<str>,
    store: Arc<dyn InstanceStore>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    slots: watch::Receiver<Arc<SlotReport>>,
    tickets: watch::Receiver<Arc<TicketReport>>,
    /// Slots that this task has seen a pod have.
    seen: BTreeSet<(InstanceKey, String)>,
    /// Instances that could not be written, with the number of failures in a row and the time of the next attempt.
    failed: BTreeMap<InstanceKey, (u32, Instant)>,
    /// Instances whose status differs, with the time at which that was first seen. Another writer may correct them.
    pending: BTreeMap<InstanceKey, Instant>,
}

impl HoldersTask {
    /// Creates the task of `node`.
    pub fn new(
        node: Arc<str>,
        store: Arc<dyn InstanceStore>,
        slots: watch::Receiver<Arc<SlotReport>>,
        tickets: watch::Receiver<Arc<TicketReport>>,
    ) -> Self {
        Self {
            node,
            instances: store.instances(),
            store,
            slots,
            tickets,
            seen: BTreeSet::new(),
            failed: BTreeMap::new(),
            pending: BTreeMap::new(),
        }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        loop {
            let (writes, next) = self.look(Instant::now());
            if writes.is_empty() {
                let changed = tokio::select! {
                    changed = self.instances.changed() => changed,
                    changed = self.slots.changed() => changed,
                    changed = self.tickets.changed() => changed,
                    () = until(next) => Ok(()),
                };
                if changed.is_err() {
                    // The senders are dropped when the agent stops, which drops this task, too.
                    std::future::pending::<()>().await;
                }
            } else {
                self.write(writes).await;
                sleep(SPACING).await;
            }
        }
    }

    /// Returns the writes that are due, and the time of the next look if nothing changes before.
    fn look(&mut self, now: Instant) -> (Vec<Change>, Option<Instant>) {
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let slots = Arc::clone(&self.slots.borrow_and_update());
        let tickets = Arc::clone(&self.tickets.borrow_and_update());
        let is_there = |key: &InstanceKey| instances.instances.contains_key(key);
        self.failed.retain(|key, _| is_there(key));
        self.pending.retain(|key, _| is_there(key));
        if !instances.complete || !slots.is_known || !tickets.is_known {
            return (Vec::new(), None);
        }
        let slots = slots.slots.iter().chain(&tickets.slots);
        let wanted = self.wanted(slots, &instances);
        let none = SlotHolders::new();
        let (mut changes, mut next) = (Vec::new(), None::<Instant>);
        for (key, instance) in &instances.instances {
            let holders = wanted.get(key).unwrap_or(&none);
            let Some(differs_since) = self.differs(key, instance, holders, now) else {
                self.failed.remove(key);
                continue;
            };
            let paused = self.failed.get(key).map(|(_, until)| *until);
            let due = differs_since.max(paused.unwrap_or(now));
            if due > now || changes.len() >= TOGETHER {
                next = Some(next.map_or(due, |next| next.min(due)));
            } else {
                let edit = Edit::Holders {
                    node: self.node.to_string(),
                    holders: holders.clone(),
                };
                changes.push(Change::edit(instance, vec![edit]));
            }
        }
        (changes, next)
    }

    /// Returns the holders of slots by Instance. A holder that an earlier agent wrote stays until this agent has seen a pod have the slot
    /// and knows its name.
    fn wanted<'a>(
        &mut self,
        slots: impl Iterator<Item = &'a SlotView>,
        instances: &InstanceSet,
    ) -> BTreeMap<InstanceKey, SlotHolders> {
        let mut all: BTreeMap<InstanceKey, SlotHolders> = BTreeMap::new();
        let mut seen = BTreeSet::new();
        for view in slots {
            let Some(key) = &view.instance else {
                continue;
            };
            let slot_key = (key.clone(), view.slot.clone());
            let is_seen = view.holder.is_some() || self.seen.contains(&slot_key);
            let before = || {
                let instance = instances.instances.get(key)?;
                let entry = instance.status.nodes.get(&*self.node)?;
                entry.holders.get(&view.slot)
            };
            let holder = match &view.holder {
                Some(named) if view.is_named => Some(named),
                Some(unnamed) => before().or(Some(unnamed)),
                None => before().filter(|_| !is_seen),
            };
            let holders = all.entry(key.clone()).or_default();
            if let Some(holder) = holder
                && holders.len() < MAX_HOLDERS
            {
                holders.insert(view.slot.clone(), abridge(holder, MAX_HOLDER));
            }
            if is_seen {
                seen.insert(slot_key);
            }
        }
        self.seen = seen;
        all
    }

    /// Returns the time at which an Instance is to be written, if its status differs.
    fn differs(
        &mut self,
        key: &InstanceKey,
        instance: &Instance,
        holders: &SlotHolders,
        now: Instant,
    ) -> Option<Instant> {
        let entry = instance.status.nodes.get(&*self.node)?;
        if instance.metadata.deletion_timestamp.is_some() {
            return None;
        }
        let delay = if entry.holders == *holders {
            // Only the agent of the Instance's first node corrects the number.
            let is_first = instance.spec.nodes.first().map(String::as_str) == Some(&*self.node);
            if !is_first || instance.status.used == Some(instance.used()) {
                self.pending.remove(key);
                return None;
            }
            OTHERS
        } else {
            let mut left = holders.iter();
            let is_less = left.all(|(slot, holder)| entry.holders.get(slot) == Some(holder));
            if is_less { RELEASE } else { Duration::ZERO }
        };
        let since = *self.pending.entry(key.clone()).or_insert(now);
        Some((since + delay).max(now))
    }

    /// Writes the changes; records those that failed or that the API server did not keep.
    async fn write(&mut self, changes: Vec<Change>) {
        let keys: Vec<_> = changes.iter().map(Change::key).collect();
        let wanted = changes.clone();
        let results = apply(&*self.store, changes).await;
        for ((key, change), result) in keys.into_iter().zip(wanted).zip(results) {
            let error = match (result, change) {
                (Ok(Some(written)), Change::Update { edits, .. })
                    if !edits.iter().all(|edit| edit.is_made(&written)) =>
                {
                    "the API server drops the field; apply the definitions of this version (leafhost crds)"
                        .to_owned()
                }
                (Ok(_), _) => continue,
                (Err(error), _) => chain(&error),
            };
            self.fail(key, &error);
        }
    }

    fn fail(&mut self, key: InstanceKey, error: &str) {
        let failures = self.failed.get(&key).map_or(0, |(failures, _)| *failures);
        let failures = failures.saturating_add(1);
        // The first failure is usually a conflict with another node's write.
        if failures > 1 && failures.is_power_of_two() {
            tracing::warn!(instance = %key, error, "cannot write the holders of slots; retrying");
        }
        let until = Instant::now() + backoff::wait(failures);
        self.failed.insert(key, (failures, until));
    }
}

#[cfg(test)]
mod tests;
