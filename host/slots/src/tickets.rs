//! Tickets: device ids of one resource that stand for no device. A container with a ticket gets the devices that a scheduler has reserved for it in
//! their Instances.
//!
//! The list of tickets never changes, so the kubelet never chooses. Nothing that users write decides, and an Allocate writes nothing. Who was
//! served is what the kubelet's own records say, so that agent and kubelet may restart at any moment.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::allocation::give_back;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::instance::{Edit, InstanceKey};
use leafhost_core::ports::{Change, InstanceSet, InstanceStore};
use leafhost_core::scheduling::{DEVICES, LockPort};
use leafhost_core::slot::DeviceUsage;
use leafhost_core::text::chain;
use leafhost_core::unit::Unit;
use leafhost_core::wait::{SourceEnded, until};
use leafhost_kubelet::{
    Allocation, Device, Devices, Health, KubeletRun, Offers, Refusal, ResourceName,
};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::looks::SOON;
use crate::metrics::Metrics;
use crate::model::admission::Served;
use crate::model::hold::{RECORD_WAIT, Reason};
use crate::model::snapshot::Snapshot;
use crate::records::{Admissions, Records};
use crate::report::SlotView;
use crate::submounts;

mod answer;
pub mod model;

use model::{Keeper, Next, Place};

/// The most tickets: twice the most pods that kubelets are told to run.
pub const MAX_TICKETS: u32 = 1_024;
/// Bounds how long an Allocate waits for a reservation that this agent has not seen yet. The kubelet admits no other pod meanwhile.
const UNSEEN: Duration = Duration::from_secs(2);
/// Bounds how long it waits while changes of Instances cannot be seen. Then there are no new pods either.
const BLIND: Duration = Duration::from_secs(8);
/// Bounds how long it waits for a device that no handler has reported since the agent started.
const UNREPORTED: Duration = Duration::from_secs(5);
/// Ends an Allocate that gets no answer otherwise, before the endpoint does with a text that says less.
const ALLOCATE: Duration = Duration::from_secs(9);
/// Bounds writes that give slots back.
const WRITE: Duration = Duration::from_secs(5);
/// Separates two looks while pods have slots, and while one has no volume, whose end would be told.
const EVERY: Duration = Duration::from_secs(10);
const SILENT: Duration = Duration::from_millis(600);

/// A call that waits for its answer.
struct Request {
    ids: BTreeSet<String>,
    answer: oneshot::Sender<Result<Allocation, Refusal>>,
    asked: Instant,
}

/// Answers the kubelet's calls for tickets.
#[derive(Clone)]
pub struct TicketHandle(mpsc::Sender<Request>);

impl TicketHandle {
    /// Returns what the container gets that the kubelet asks for.
    pub async fn allocate(&self, ids: BTreeSet<String>) -> Result<Allocation, Refusal> {
        let (answer, answered) = oneshot::channel();
        let request = Request {
            ids,
            answer,
            asked: Instant::now(),
        };
        let stopping = || Refusal::Unavailable("the agent is stopping".to_owned());
        let decided = timeout(ALLOCATE, async {
            self.0.send(request).await.map_err(|_| stopping())?;
            answered.await.map_err(|_| stopping())?
        });
        decided.await.unwrap_or_else(|_| {
            Err(Refusal::Unavailable(
                "the kubelet's records were not read in time".to_owned(),
            ))
        })
    }
}

/// Returns the name of the resource.
pub fn resource() -> Option<ResourceName> {
    ResourceName::new(DEVICES).ok()
}

/// Returns so many tickets as the kubelet is offered.
pub fn offers(count: u32) -> Offers {
    let ids = (0..count.min(MAX_TICKETS)).map(|number| {
        let device = Device {
            health: Health::Healthy,
            numa: None,
        };
        (format!("ticket-{number:04}"), device)
    });
    let devices: Devices = ids.collect();
    let offer = resource().map(|resource| (resource, Arc::new(devices)));
    offer.into_iter().collect()
}

/// Says how tickets are kept.
#[derive(Debug, Clone, Copy)]
pub struct TicketConfig {
    /// How long a slot stays reserved whose pod never comes.
    pub grace: Duration,
    /// True if tickets are offered. Without it there is nothing to look for but slots of pods from when there were some.
    pub is_offered: bool,
}

/// What the task works on.
pub struct TicketPorts {
    /// Where slots are given back.
    pub store: Arc<dyn InstanceStore>,
    /// The devices as they are seen.
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    /// The kubelet's records of tickets.
    pub records: Arc<dyn Records>,
    /// Whom it admits.
    pub admissions: Arc<dyn Admissions>,
    /// The lock of the node, if schedulers lock it.
    pub lock: Option<LockPort>,
}

/// What the task shows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TicketReport {
    /// Tells that the Instances were read. Until then an absent slot says nothing.
    pub is_known: bool,
    /// Tells that the kubelet's records can be read: without them no ticket is offered.
    pub is_readable: bool,
    /// The slots that pods of this node have by a scheduler.
    pub slots: Vec<SlotView>,
}

/// The task.
pub struct TicketTask {
    node: Arc<str>,
    config: TicketConfig,
    store: Arc<dyn InstanceStore>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    records: Arc<dyn Records>,
    admissions: Arc<dyn Admissions>,
    requests: mpsc::Receiver<Request>,
    report: watch::Sender<Arc<TicketReport>>,
    metrics: Arc<Metrics>,
    keeper: Keeper,
    holders: BTreeSet<String>,
    reading: JoinSet<Snapshot>,
    next: Option<Instant>,
    /// So many looks in a row told nothing.
    unanswered: u32,
    /// Answers that the kubelet may not have written down yet.
    answered: Vec<Answered>,
    /// The uids of pods that may have got what was reserved for others.
    doubtful: BTreeSet<String>,
    lock: Option<LockPort>,
    /// The pods, `namespace/name`, that the kubelet had admitted at the last Allocate.
    admitted: BTreeSet<String>,
}

/// An answer.
struct Answered {
    container: Served,
    ids: BTreeSet<String>,
    kubelet: Option<KubeletRun>,
    at: Instant,
}

impl TicketReport {
    /// Returns what is shown where no ticket is offered.
    pub fn none() -> Self {
        Self {
            is_known: true,
            ..Self::default()
        }
    }
}

impl TicketTask {
    /// Makes the task of a node, what the kubelet's calls go to, and what the task shows.
    pub fn new(
        node: &str,
        config: TicketConfig,
        ports: TicketPorts,
        metrics: Arc<Metrics>,
    ) -> (Self, TicketHandle, watch::Receiver<Arc<TicketReport>>) {
        let (sender, requests) = mpsc::channel(crate::queue::QUEUE);
        let (report, reported) = watch::channel(Arc::default());
        let task = Self {
            node: node.into(),
            config,
            instances: ports.store.instances(),
            store: ports.store,
            devices: ports.devices,
            records: ports.records,
            admissions: ports.admissions,
            requests,
            report,
            metrics,
            keeper: Keeper::default(),
            holders: BTreeSet::new(),
            reading: JoinSet::new(),
            next: config.is_offered.then(Instant::now),
            unanswered: 0,
            answered: Vec::new(),
            doubtful: BTreeSet::new(),
            lock: ports.lock,
            admitted: BTreeSet::new(),
        };
        (task, TicketHandle(sender), reported)
    }

    /// Runs until `stop`.
    pub async fn run(mut self, stop: CancellationToken) -> Result<(), SourceEnded> {
        let mut events = self.records.changes();
        loop {
            tokio::select! {
                () = stop.cancelled() => return Ok(()),
                Some(request) = self.requests.recv() => self.answer(request).await,
                changed = self.instances.changed() => {
                    changed.map_err(|_| SourceEnded("Instances"))?;
                    self.publish();
                    self.look_by(Instant::now() + SOON);
                }
                changed = events.changed() => {
                    changed.map_err(|_| SourceEnded("the kubelet's folder"))?;
                    self.look_by(Instant::now() + SOON);
                }
                () = until(self.next), if self.reading.is_empty() => self.read(),
                Some(snapshot) = self.reading.join_next() => match snapshot {
                    Ok(snapshot) => self.see(&snapshot).await,
                    Err(_) => self.next = Some(Instant::now() + EVERY),
                },
            }
        }
    }

    /// Looks then at the latest, if pods have slots here, or tickets wait for the kubelet's records.
    fn look_by(&mut self, at: Instant) {
        if self.config.is_offered && !self.report.borrow().is_readable
            || !model::places(&self.node, &self.instances.borrow()).is_empty()
        {
            self.next = Some(self.next.map_or(at, |next| next.min(at)));
        }
    }

    fn read(&mut self) {
        self.next = None;
        let places = model::places(&self.node, &self.instances.borrow());
        let uids = places.into_iter().map(|(_, _, uid)| uid);
        let uids = uids.chain(self.doubtful.iter().cloned()).collect();
        let records = Arc::clone(&self.records);
        self.reading
            .spawn(async move { records.read(uids, BTreeSet::new()).await });
    }

    async fn see(&mut self, snapshot: &Snapshot) {
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let wrong = self.confirm(&instances, snapshot);
        let recent = self.answered.iter();
        let recent = recent
            .filter(|answer| answer.at + RECORD_WAIT > snapshot.begun)
            .map(|answer| answer.container.0.clone())
            .collect();
        let with = (&recent, self.config.grace);
        let seen = self.keeper.see(&self.node, &instances, snapshot, with);
        let has_slots = !model::places(&self.node, &instances).is_empty();
        self.unanswered = match &snapshot.listed {
            Some(_) => 0,
            None => self.unanswered.saturating_add(1),
        };
        if self.unanswered > 0 && (has_slots || self.config.is_offered) {
            let doubled = 1_u32.checked_shl(self.unanswered).unwrap_or(u32::MAX);
            let wait = SOON.saturating_mul(doubled).min(EVERY);
            self.next = Some(Instant::now() + wait);
        } else if self.unanswered == 0 && has_slots {
            let is_soon = snapshot.is_silent || !self.doubtful.is_empty();
            let wait = if is_soon { SILENT } else { EVERY };
            self.next = Some(Instant::now() + wait);
        }
        if snapshot.listed.is_some() {
            self.holders = seen.holders;
            let locked = self.locked();
            if let Some(lock) = &self.lock {
                // Also after an agent that has ended before it could say so. One that was refused stays until it has the lock no more.
                lock.done.send_modify(|done| {
                    done.retain(|uid| Some(uid) == locked.as_ref());
                    done.extend(self.holders.iter().cloned());
                });
            }
        }
        self.show(snapshot.listed.is_some(), &instances);
        self.write(&instances, wrong, seen.back).await;
    }

    /// Compares for whom the kubelet has written tickets down with whom they were given for. Returns the slots of which another pod has the devices:
    /// one that has the name of the pod that was bound.
    fn confirm(
        &mut self,
        instances: &InstanceSet,
        snapshot: &Snapshot,
    ) -> Vec<(Place, String, String)> {
        let mut wrong = Vec::new();
        let Some(checked) = &snapshot.checkpoint else {
            return wrong;
        };
        let places = model::places(&self.node, instances);
        self.doubtful.clear();
        self.answered.retain(|answer| {
            let units = answer.ids.iter().map(|id| Unit {
                resource: DEVICES.to_owned(),
                id: id.clone(),
            });
            let (uid, container) = &answer.container;
            let pods = units
                .filter_map(|unit| checked.entries.get(&unit))
                .flatten();
            let own: Vec<_> = pods.filter(|pod| pod.container == *container).collect();
            if own.iter().any(|pod| pod.uid.as_ref() == Some(uid)) {
                return false;
            }
            if let Some(found) = own.iter().find_map(|pod| pod.uid.clone())
                && answer.at <= snapshot.begun
            {
                // A record of a pod that has ended says nothing of this one.
                if snapshot.alive.get(&found) == Some(&true) {
                    let own = places.iter().filter(|(_, _, other)| other == uid);
                    wrong.extend(own.map(|(key, slot, _)| {
                        ((key.clone(), slot.clone()), uid.clone(), found.clone())
                    }));
                }
                self.doubtful.insert(found);
            }
            answer.at + self.config.grace > snapshot.begun
        });
        wrong
    }

    /// Gives slots back, and enters the pods that have others.
    async fn write(
        &self,
        instances: &InstanceSet,
        wrong: Vec<(Place, String, String)>,
        back: Vec<(Place, String, Reason)>,
    ) {
        let usage = |uid: &str| DeviceUsage::Pod {
            uid: uid.to_owned(),
            node: self.node.to_string(),
        };
        let mut edits: BTreeMap<InstanceKey, Vec<Edit>> = BTreeMap::new();
        for ((key, slot), uid, found) in wrong {
            tracing::warn!(
                slot,
                uid,
                found,
                "a pod has got the devices that were reserved for an earlier pod of its name; they are its own now"
            );
            edits.entry(key).or_default().push(Edit::Slot {
                id: slot,
                held: usage(&uid),
                new: usage(&found),
            });
        }
        for ((key, slot), uid, reason) in back {
            self.metrics.released(reason.as_str());
            tracing::info!(slot, reason = reason.as_str(), "released");
            let edit = give_back(&slot, &usage(&uid));
            edits.entry(key).or_default().push(edit);
        }
        let changes: Vec<Change> = edits
            .into_iter()
            .filter_map(|(key, edits)| {
                let uid = instances.instances.get(&key)?.metadata.uid.clone();
                Some(Change::Update { key, uid, edits })
            })
            .collect();
        if changes.is_empty() {
            return;
        }
        // What could not be written is decided again at the next look.
        let Ok(written) = timeout(WRITE, self.store.apply(changes)).await else {
            tracing::warn!("cannot give slots back: the store does not answer; tried again");
            return;
        };
        for error in written.into_iter().filter_map(Result::err) {
            if !error.is_outdated() {
                let error = chain(&error);
                tracing::warn!(error, "cannot give slots back; tried again");
            }
        }
    }

    fn publish(&self) {
        let is_readable = self.report.borrow().is_readable;
        self.show(is_readable, &self.instances.borrow());
    }

    fn show(&self, is_readable: bool, instances: &InstanceSet) {
        let places = model::places(&self.node, instances).into_iter();
        let slots = places.map(|(key, slot, uid)| {
            let instance = instances.instances.get(&key);
            let reserved = instance.and_then(|instance| instance.reserved(&slot));
            let mut answered = self.answered.iter();
            let has_answer =
                answered.any(|one| one.container.0 == uid && one.at.elapsed() < RECORD_WAIT);
            let holder = reserved.filter(|_| has_answer || self.holders.contains(&uid));
            SlotView {
                holder: holder.map(|reserved| reserved.pod.clone()),
                is_named: true,
                unit: Unit {
                    resource: DEVICES.to_owned(),
                    id: uid,
                },
                instance: Some(key),
                slot,
            }
        });
        let report = TicketReport {
            is_known: instances.is_known(),
            // Once it could be read it stays so: the kubelet never forgets a resource.
            is_readable: is_readable || self.report.borrow().is_readable,
            slots: slots.collect(),
        };
        self.report.send_if_modified(|before| {
            let differs = **before != report;
            if differs {
                *before = Arc::new(report);
            }
            differs
        });
    }

    async fn answer(&mut self, request: Request) {
        let Request { ids, answer, asked } = request;
        let (found, container) = match self.decide(asked).await {
            Ok((allocation, container)) => (submounts::hold(allocation), Some(container)),
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
                "allocated what a scheduler has reserved"
            );
            self.answered.push(Answered {
                container,
                ids,
                kubelet: self.records.kubelet_run(),
                at: Instant::now(),
            });
            // Before the kubelet writes it down: a scheduler that sees the pod deleted leaves the slot to this node.
            self.publish();
        }
        self.next = Some(Instant::now() + SOON);
    }

    /// Returns what the container gets that the kubelet asks for, and which one that is.
    async fn decide(&mut self, asked: Instant) -> Result<(Allocation, Served), Refusal> {
        let mut refusal = Refusal::Unavailable(answer::nobody());
        let mut last = asked + UNSEEN;
        loop {
            let admission = self.admissions.admission().await.map_err(|why| {
                Refusal::Unavailable(format!("it cannot be told for which pod this is: {why}"))
            })?;
            self.admitted.clone_from(&admission.active);
            let instances = Arc::clone(&self.instances.borrow_and_update());
            if !instances.complete || instances.interrupted.is_some() {
                last = last.max(asked + BLIND);
            }
            let kubelet = self.records.kubelet_run();
            let recent = self
                .answered
                .iter()
                .filter(|answer| answer.kubelet == kubelet && answer.at.elapsed() < RECORD_WAIT);
            let recent = recent.map(|answer| answer.container.clone()).collect();
            let reservations = model::reservations(&self.node, &instances);
            let over = self.keeper.seen_by(kubelet);
            let locked = self.locked();
            let devices = Arc::clone(&self.devices.borrow());
            match model::next(&reservations, &admission, &recent, &over, locked.as_deref()) {
                Next::Unclear(pods) => {
                    return Err(Refusal::Unavailable(format!(
                        "it cannot be told for which pod this is: {} wait for devices",
                        pods.join(" and ")
                    )));
                }
                Next::Container(uid, reservation, wanted) => {
                    let found = u32::try_from(wanted.devices.len()).unwrap_or(u32::MAX);
                    if found >= wanted.of {
                        match answer::allocation(
                            &self.node,
                            (&devices, &instances),
                            (uid, &reservation.pod),
                            wanted,
                        ) {
                            Ok(given) => {
                                if model::is_last(uid, reservation, &admission, &recent) {
                                    self.unlock(uid);
                                }
                                return Ok((given, (uid.to_owned(), wanted.name.clone())));
                            }
                            Err(answer::Refused {
                                why,
                                is_final: true,
                            }) => return Err(why),
                            Err(answer::Refused { why, .. }) => {
                                refusal = why;
                                last = last.max(asked + UNREPORTED);
                            }
                        }
                    }
                }
                Next::Nobody => {}
            }
            // The watch may be a little behind the scheduler's write, and handlers behind an agent that has just started.
            let changed = async {
                tokio::select! {
                    changed = self.instances.changed() => changed,
                    changed = self.devices.changed() => changed,
                }
            };
            match timeout_at(last, changed).await {
                Ok(Ok(())) => {}
                _ => return Err(refusal),
            }
        }
    }

    /// Returns the uid of the pod for which the node is locked.
    fn locked(&self) -> Option<String> {
        let locked = self.lock.as_ref()?.locked.borrow();
        locked.as_ref().map(|lock| lock.uid.clone())
    }

    /// Says that the pod that has the lock needs it no more, if the kubelet has admitted it: a pod that is refused fails.
    fn give_up(&self) {
        let locked = self.lock.as_ref().and_then(|lock| {
            let locked = lock.locked.borrow();
            let locked = locked.as_ref()?;
            let is_admitted = self.admitted.contains(&locked.pod.to_string());
            is_admitted.then(|| locked.uid.clone())
        });
        if let Some(uid) = locked {
            self.unlock(&uid);
        }
    }

    /// Says that a pod needs the lock no more.
    fn unlock(&self, uid: &str) {
        if let Some(lock) = &self.lock {
            lock.done.send_modify(|done| {
                done.insert(uid.to_owned());
            });
        }
    }
}

#[cfg(test)]
mod tests;
