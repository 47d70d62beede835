//! Tickets: device ids of one resource, which represent no devices. A container with a ticket gets the devices that a scheduler has reserved for it
//! in their Instances.
//!
//! The list of tickets never changes, so the kubelet never chooses a device. No decision depends on what users write, and an Allocate
//! writes nothing. The kubelet's own records say which containers were served, so agent and kubelet may restart at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::allocation::release;
use leafhost_core::backoff;
use leafhost_core::device_id::DeviceId;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::{Edit, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore};
use leafhost_core::scheduling::{DEVICES, LockPort};
use leafhost_core::slot::DeviceUsage;
use leafhost_core::text::chain;
use leafhost_core::wait::{SourceEnded, publish, until};
use leafhost_kubelet::{Allocation, Device, Health, KubeletRun, Offers, Refusal, ResourceName};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::metrics::Metrics;
use crate::model::slot_state::{RECORD_WAIT, Reason, SlotKey};
use crate::model::snapshot::{Served, Snapshot};
use crate::queue::{Request, TicketQueue};
use crate::record_reads::{EVERY, SILENT, SOON};
use crate::records::{Admissions, Records};
use crate::report::SlotView;
use crate::submounts;
use crate::writes::apply;

mod answer;
pub mod model;

use model::{Next, TicketHistory};

/// Maximum number of tickets: twice the maximum number of pods that kubelets are configured to run.
pub const MAX_TICKETS: u32 = 1_024;
/// Maximum time that an Allocate waits for a reservation that the watch has not shown, before the Instances are read.
/// The kubelet admits no other pod during this time.
const UNSEEN: Duration = Duration::from_millis(500);
/// Maximum time that an Allocate waits if the Instances cannot be read. No new pods arrive then either.
const BLIND: Duration = Duration::from_secs(8);
/// Longest wait of an Allocate for a device that no handler has reported since the agent started.
const UNREPORTED: Duration = Duration::from_secs(5);

/// Returns `count` tickets, at most [`MAX_TICKETS`], as offers for the kubelet.
pub fn offers(count: u32) -> Offers {
    let ids = (0..count.min(MAX_TICKETS)).map(|number| {
        let device = Device {
            health: Health::Healthy,
            numa: None,
        };
        (format!("ticket-{number:04}"), device)
    });
    let mut offers = Offers::new();
    if let Ok(resource) = ResourceName::new(DEVICES) {
        offers.insert(resource, Arc::new(ids.collect()));
    }
    offers
}

/// Settings for tickets.
#[derive(Debug, Clone, Copy)]
pub struct TicketConfig {
    /// Time for which a slot stays reserved if its pod never comes.
    pub grace: Duration,
    /// True if tickets are offered. Otherwise the task only releases slots of pods from the time when tickets were offered.
    pub is_offered: bool,
}

/// Ports and inputs of a [`TicketTask`].
pub struct TicketPorts {
    /// Store of the Instances whose slots are released.
    pub store: Arc<dyn InstanceStore>,
    /// Devices as the handlers report them.
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    /// Kubelet's records of tickets.
    pub records: Arc<dyn Records>,
    /// Source of the pods that the kubelet admits.
    pub admissions: Arc<dyn Admissions>,
    /// Lock of the node, if schedulers lock nodes.
    pub lock: Option<LockPort>,
}

/// State of tickets that the task publishes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TicketReport {
    /// True once the Instances were read; until then, an absent slot means nothing.
    pub is_known: bool,
    /// True once the kubelet's records could be read; before that, no ticket is offered.
    pub is_readable: bool,
    /// Slots that a scheduler has reserved for pods of this node.
    pub slots: Vec<SlotView>,
}

/// Task that answers Allocate calls for tickets and releases slots of pods that have ended.
pub struct TicketTask {
    node: Arc<str>,
    config: TicketConfig,
    ports: TicketPorts,
    instances: watch::Receiver<Arc<InstanceSet>>,
    requests: TicketQueue,
    report: watch::Sender<Arc<TicketReport>>,
    metrics: Arc<Metrics>,
    history: TicketHistory,
    holders: BTreeSet<String>,
    reading: JoinSet<Snapshot>,
    next: Option<Instant>,
    /// Number of reads in a row in which PodResources did not answer.
    unanswered: u32,
    /// Answers that the kubelet may not have recorded yet.
    answered: Vec<Answered>,
    /// Uids of pods that may have got devices reserved for other pods.
    uncertain_uids: BTreeSet<String>,
    /// Pods, as `namespace/name`, that the kubelet had admitted at the last Allocate.
    admitted: BTreeSet<String>,
}

/// Answered Allocate call.
struct Answered {
    container: Served,
    ids: BTreeSet<String>,
    kubelet: Option<KubeletRun>,
    at: Instant,
}

impl TicketTask {
    /// Creates the task of a node, and a receiver of the task's reports.
    pub fn new(
        node: &str,
        config: TicketConfig,
        ports: TicketPorts,
        requests: TicketQueue,
        metrics: Arc<Metrics>,
    ) -> (Self, watch::Receiver<Arc<TicketReport>>) {
        let (report, reported) = watch::channel(Arc::default());
        let task = Self {
            node: node.into(),
            config,
            instances: ports.store.instances(),
            ports,
            requests,
            report,
            metrics,
            history: TicketHistory::default(),
            holders: BTreeSet::new(),
            reading: JoinSet::new(),
            next: config.is_offered.then(Instant::now),
            unanswered: 0,
            answered: Vec::new(),
            uncertain_uids: BTreeSet::new(),
            admitted: BTreeSet::new(),
        };
        (task, reported)
    }

    /// Runs until `stop`. Fails if the Instances or the kubelet's folder can no longer be watched.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), SourceEnded> {
        let mut events = self.ports.records.changes();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(request) = self.requests.0.recv() => self.answer(request).await,
                changed = self.instances.changed() => {
                    changed.map_err(|_| SourceEnded("Instances"))?;
                    self.publish(false);
                    self.schedule_read(Instant::now() + SOON);
                }
                changed = events.changed() => {
                    changed.map_err(|_| SourceEnded("the kubelet's folder"))?;
                    self.schedule_read(Instant::now() + SOON);
                }
                () = until(self.next), if self.reading.is_empty() => self.read(),
                Some(snapshot) = self.reading.join_next() => match snapshot {
                    Ok(snapshot) => self.observe(&snapshot).await,
                    Err(_) => self.next = Some(Instant::now() + EVERY),
                },
            }
        }
    }

    /// Schedules a read of the kubelet's records at `at` or earlier, if pods have slots here or tickets are offered and the records were not readable
    /// yet.
    fn schedule_read(&mut self, at: Instant) {
        if self.config.is_offered && !self.report.borrow().is_readable
            || !model::reserved_slots(&self.node, &self.instances.borrow()).is_empty()
        {
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    fn read(&mut self) {
        self.next = None;
        let reserved = model::reserved_slots(&self.node, &self.instances.borrow());
        let uids = reserved.into_iter().map(|(_, _, uid)| uid);
        let uids = uids.chain(self.uncertain_uids.iter().cloned()).collect();
        let records = Arc::clone(&self.ports.records);
        self.reading
            .spawn(async move { records.read(uids, BTreeSet::new()).await });
    }

    async fn observe(&mut self, snapshot: &Snapshot) {
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let wrong = self.confirm(&instances, snapshot);
        let recent = self.answered.iter();
        let recent = recent
            .filter(|answer| answer.at + RECORD_WAIT > snapshot.begun)
            .map(|answer| answer.container.0.clone())
            .collect();
        let with = (&recent, self.config.grace);
        let seen = self.history.observe(&self.node, &instances, snapshot, with);
        let has_slots = !model::reserved_slots(&self.node, &instances).is_empty();
        self.unanswered = match &snapshot.listed {
            Some(_) => 0,
            None => self.unanswered.saturating_add(1),
        };
        if self.unanswered > 0 && (has_slots || self.config.is_offered) {
            let wait = backoff::doubled(SOON, self.unanswered, EVERY);
            self.next = Some(Instant::now() + wait);
        } else if self.unanswered == 0 && has_slots {
            let is_soon = snapshot.is_silent || !self.uncertain_uids.is_empty();
            let wait = if is_soon { SILENT } else { EVERY };
            self.next = Some(Instant::now() + wait);
        }
        if snapshot.listed.is_some() {
            self.holders = seen.holders;
            let locked = self.locked();
            if let Some(lock) = &self.ports.lock {
                // Includes pods that an earlier run of the agent did not report before it ended. A refused pod stays until it no longer has
                // the lock.
                lock.done.send_modify(|done| {
                    done.retain(|uid| Some(uid) == locked.as_ref());
                    done.extend(self.holders.iter().cloned());
                });
            }
        }
        // If the kubelet has not recorded an answer by then, its pod no longer counts as holder.
        let waits = self.answered.iter().map(|answer| answer.at + RECORD_WAIT);
        if let Some(over) = waits.filter(|over| *over > Instant::now()).min() {
            self.schedule_read(over);
        }
        self.publish(snapshot.listed.is_some());
        self.write(&instances, wrong, seen.back).await;
    }

    /// Compares the pods for which the kubelet recorded tickets with the pods for which the agent answered them.
    /// Returns the slots whose devices went to another pod of the same name, each with the uid that reserved it and the
    /// recorded uid.
    fn confirm(
        &mut self,
        instances: &InstanceSet,
        snapshot: &Snapshot,
    ) -> Vec<(SlotKey, String, String)> {
        let mut wrong = Vec::new();
        let Some(checked) = &snapshot.checkpoint else {
            return wrong;
        };
        let reserved = model::reserved_slots(&self.node, instances);
        self.uncertain_uids.clear();
        self.answered.retain(|answer| {
            let ids = answer.ids.iter();
            let device_ids = ids.map(|id| DeviceId::new(DEVICES, id));
            let (uid, container) = &answer.container;
            let pods = device_ids
                .filter_map(|device_id| checked.entries.get(&device_id))
                .flatten();
            let own: Vec<_> = pods.filter(|pod| pod.container == *container).collect();
            if own.iter().any(|pod| pod.uid.as_ref() == Some(uid)) {
                return false;
            }
            if let Some(found) = own.iter().find_map(|pod| pod.uid.clone())
                && answer.at <= snapshot.begun
            {
                // The record of a pod that has ended does not show that it got this pod's devices.
                if snapshot.alive.get(&found) == Some(&true) {
                    let own = reserved.iter().filter(|(_, _, other)| other == uid);
                    wrong.extend(own.map(|(key, slot, _)| {
                        ((key.clone(), slot.clone()), uid.clone(), found.clone())
                    }));
                }
                self.uncertain_uids.insert(found);
            }
            answer.at + self.config.grace > snapshot.begun
        });
        wrong
    }

    /// Releases the slots in `back`, and records in the slots in `wrong` the uids of the pods that have their devices.
    async fn write(
        &self,
        instances: &InstanceSet,
        wrong: Vec<(SlotKey, String, String)>,
        back: Vec<(SlotKey, String, Reason)>,
    ) {
        let usage = |uid: &str| DeviceUsage::of_pod(uid, &self.node);
        let mut edits: BTreeMap<InstanceKey, Vec<Edit>> = BTreeMap::new();
        for ((key, slot), uid, found) in wrong {
            tracing::warn!(
                slot,
                uid,
                found,
                "a pod got the devices that were reserved for an earlier pod of its name; the slot now has the uid of this pod"
            );
            edits.entry(key).or_default().push(Edit::Slot {
                id: slot,
                held: usage(&uid),
                new: usage(&found),
                reserved: None,
            });
        }
        for ((key, slot), uid, reason) in back {
            self.metrics.released(reason.as_str());
            tracing::info!(slot, reason = reason.as_str(), "released");
            if let Some(instance) = instances.instances.get(&key) {
                let edits_of_slot = release(&self.node, instance, &slot, &usage(&uid));
                edits.entry(key).or_default().extend(edits_of_slot);
            }
        }
        let changes: Vec<Change> = edits
            .into_iter()
            .filter_map(|(key, edits)| {
                let instance = instances.instances.get(&key)?;
                Some(Change::edit(instance, edits))
            })
            .collect();
        if changes.is_empty() {
            return;
        }
        // A write that fails is planned again after the next read.
        let written = apply(&*self.ports.store, changes).await;
        for error in written.into_iter().filter_map(Result::err) {
            if !error.is_outdated() {
                let error = chain(&error);
                tracing::warn!(error, "cannot release slots; retrying");
            }
        }
    }

    /// Publishes the state; `is_readable` is true if the kubelet's records have just been read.
    fn publish(&self, is_readable: bool) {
        let instances = &self.instances.borrow();
        let reserved = model::reserved_slots(&self.node, instances).into_iter();
        let slots = reserved.map(|(key, slot, uid)| {
            let instance = instances.instances.get(&key);
            let reserved = instance.and_then(|instance| instance.reserved(&slot));
            let mut answered = self.answered.iter();
            let has_answer =
                answered.any(|one| one.container.0 == uid && one.at.elapsed() < RECORD_WAIT);
            let holder = reserved.filter(|_| has_answer || self.holders.contains(&uid));
            SlotView {
                holder: holder.map(|reserved| reserved.pod.clone()),
                is_named: true,
                device_id: DeviceId::new(DEVICES, uid),
                instance: Some(key),
                slot,
            }
        });
        let report = TicketReport {
            is_known: instances.is_known(),
            // Stays true once it was true: the kubelet never forgets a resource.
            is_readable: is_readable || self.report.borrow().is_readable,
            slots: slots.collect(),
        };
        publish(&self.report, Arc::new(report));
    }

    async fn answer(&mut self, request: Request) {
        let Request {
            ids, answer, asked, ..
        } = request;
        let (found, container) = match self.decide(asked).await {
            Ok((allocation, container)) => (submounts::cover(allocation), Some(container)),
            Err(refusal) => {
                self.give_up();
                (Err(refusal), None)
            }
        };
        let result = if found.is_ok() { "ok" } else { "refused" };
        self.metrics.allocated(result, asked.elapsed());
        if let Err(refusal) = &found {
            let reason = refusal.to_string();
            tracing::warn!(resource = DEVICES, reason, "allocation refused");
        }
        let is_sent = answer.send(found).is_ok();
        if let Some(container) = container.filter(|_| is_sent) {
            tracing::info!(
                pod = container.0,
                container = container.1,
                "allocated the devices that a scheduler has reserved"
            );
            // The kubelet uses an ID again after it has rejected the pod that it asked for.
            self.answered.retain(|one| one.ids.is_disjoint(&ids));
            self.answered.push(Answered {
                container,
                ids,
                kubelet: self.ports.records.kubelet_run(),
                at: Instant::now(),
            });
            // Published before the kubelet records the answer: a scheduler that sees the pod deleted then leaves the slot to this node.
            self.publish(false);
        }
        self.next = Some(Instant::now() + SOON);
    }

    /// Returns the allocation of the container that the kubelet asks for, and that container.
    async fn decide(&mut self, asked: Instant) -> Result<(Allocation, Served), Refusal> {
        let mut refusal = Refusal::Unavailable(answer::nobody());
        let (mut last, mut is_read) = (asked + UNSEEN, false);
        loop {
            let admission = self.ports.admissions.admission().await.map_err(|why| {
                Refusal::Unavailable(format!("cannot determine for which pod this is: {why}"))
            })?;
            self.admitted.clone_from(&admission.active);
            let instances = Arc::clone(&self.instances.borrow_and_update());
            let kubelet = self.ports.records.kubelet_run();
            let recent = self
                .answered
                .iter()
                .filter(|answer| answer.kubelet == kubelet && answer.at.elapsed() < RECORD_WAIT);
            let recent = recent.map(|answer| answer.container.clone()).collect();
            let reservations = model::reservations(&self.node, &instances);
            let over = self.history.seen_by(kubelet);
            let locked = self.locked();
            let devices = Arc::clone(&self.ports.devices.borrow());
            match model::next(&reservations, &admission, &recent, &over, locked.as_deref()) {
                Next::Unclear(pods) => {
                    return Err(Refusal::Unavailable(format!(
                        "cannot determine for which pod this is: {} wait for devices",
                        pods.join(" and ")
                    )));
                }
                Next::Container(uid, reservation, wanted) if wanted.is_whole() => {
                    let seen = (&*devices, &*instances);
                    match answer::allocation(&self.node, seen, wanted) {
                        Ok(given) => {
                            if model::is_last(uid, reservation, &admission, &recent) {
                                self.unlock(uid);
                            }
                            return Ok((given, (uid.to_owned(), wanted.name.clone())));
                        }
                        Err(refused) if refused.is_final => return Err(refused.why),
                        Err(refused) => {
                            refusal = refused.why;
                            last = last.max(asked + UNREPORTED);
                        }
                    }
                }
                Next::Container(..) | Next::Nobody => {}
            }
            // The watch lags behind the scheduler's write, and handlers behind an agent that has just started.
            let changed = async {
                tokio::select! {
                    changed = self.instances.changed() => changed,
                    changed = self.ports.devices.changed() => changed,
                }
            };
            match timeout_at(last, changed).await {
                Ok(Ok(())) => {}
                Err(_) if !is_read => {
                    is_read = true;
                    let read = self.ports.store.refresh().await;
                    if let Err(error) = &read {
                        tracing::warn!(error, "cannot read the Instances for an allocation");
                    }
                    if read.is_err() || !self.instances.borrow().complete {
                        last = last.max(asked + BLIND);
                    }
                }
                _ => return Err(refusal),
            }
        }
    }

    /// Returns the uid of the pod for which the node is locked.
    fn locked(&self) -> Option<String> {
        let locked = self.ports.lock.as_ref()?.locked.borrow();
        locked.as_ref().map(|lock| lock.uid.clone())
    }

    /// Reports that the pod with the lock no longer needs it, if the kubelet has admitted that pod: a pod whose Allocate is refused fails.
    fn give_up(&self) {
        let locked = self.ports.lock.as_ref().and_then(|lock| {
            let locked = lock.locked.borrow();
            let locked = locked.as_ref()?;
            let is_admitted = self.admitted.contains(&locked.pod.to_string());
            is_admitted.then(|| locked.uid.clone())
        });
        if let Some(uid) = locked {
            self.unlock(&uid);
        }
    }

    /// Reports that a pod no longer needs the lock.
    fn unlock(&self, uid: &str) {
        if let Some(lock) = &self.ports.lock {
            lock.done.send_modify(|done| {
                done.insert(uid.to_owned());
            });
        }
    }
}

#[cfg(test)]
mod tests;
