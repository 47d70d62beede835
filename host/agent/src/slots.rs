//! The slot task: which slots this node has, what the kubelet is offered, and who gets what. It is the only one that claims
//! and releases on this node, one decision after the other.
//!
//! A claim is written before the kubelet is answered, as a compare-and-swap: whoever loses a race is told so, and every list
//! shows the true state at once. A slot comes back as [`holds`] says.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use leafhost_core::instance::Edit;
use leafhost_core::ports::{Change, InstanceSet, InstanceStore, ResourceLedger, StoreError};
use leafhost_core::slot::DeviceUsage;
use leafhost_kubelet::{Allocation, Allocator, Offers, Refusal, ResourceName};
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::discovery::DeviceSnapshot;
use crate::loader::until;
use crate::metrics::Metrics;
use crate::reconcile::Ended;
use crate::words;

pub mod books;
pub mod claim;
pub mod holds;
pub mod look;
pub mod offers;
pub mod report;
pub mod unit;
pub mod view;

use books::Books;
use claim::{Chosen, Ground};
use holds::{Holder, Holds, Reason};
use look::Look;
use offers::{Limits, Offerer};
use report::{SlotReport, SlotView};
use unit::{Unit, resource_name};
use view::Owners;

/// Allocations that wait; the kubelet admits pods one after the other.
const QUEUE: usize = 64;
/// An allocation is refused when it was not decided after so long: the kubelet itself waits without end.
const ALLOCATE: Duration = Duration::from_secs(8);
/// PodResources is asked for so long while an allocation waits.
const ASK: Duration = Duration::from_secs(2);
/// Before anything is offered the kubelet's books are looked at, for so long at most.
const FIRST_LOOK: Duration = Duration::from_secs(10);
/// After an event the books are looked at a little later: the events of one pod come together.
const SOON: Duration = Duration::from_millis(150);
/// While this node has slots, the books are looked at so often: PodResources tells nothing by itself.
const EVERY: Duration = Duration::from_secs(10);

/// How slots are offered and come back.
#[derive(Debug, Clone, Copy)]
pub struct SlotConfig {
    /// A slot nobody was seen to have comes back after so long.
    pub grace: Duration,
    /// Resources of single Instances at one time.
    pub instance_resources: usize,
}

/// The slots that somebody was seen to have, by slot id: an Instance that is made begins with them.
pub type HeldSlots = BTreeMap<String, DeviceUsage>;

struct Request {
    resource: String,
    ids: BTreeSet<String>,
    answer: oneshot::Sender<Result<Allocation, Refusal>>,
    asked: Instant,
}

/// Where the kubelet's questions go.
#[derive(Clone)]
pub struct SlotHandle {
    node: Arc<str>,
    requests: mpsc::Sender<Request>,
}

#[async_trait]
impl Allocator for SlotHandle {
    async fn allocate(
        &self,
        resource: &ResourceName,
        ids: BTreeSet<String>,
    ) -> Result<Allocation, Refusal> {
        let (answer, answered) = oneshot::channel();
        let request = Request {
            resource: resource.as_str().to_owned(),
            ids,
            answer,
            asked: Instant::now(),
        };
        let stopping = || Refusal::Unavailable("the agent is stopping".to_owned());
        let decided = timeout(ALLOCATE, async {
            self.requests.send(request).await.map_err(|_| stopping())?;
            answered.await.map_err(|_| stopping())?
        });
        decided.await.unwrap_or_else(|_| {
            Err(Refusal::Unavailable(format!(
                "the claim was not written within {} seconds; see the agent's status",
                ALLOCATE.as_secs()
            )))
        })
    }

    fn prefer(&self, _: &ResourceName, available: &BTreeSet<String>) -> Vec<String> {
        let mut ordered: Vec<_> = available
            .iter()
            .map(|id| (offers::rank(&self.node, id), id))
            .collect();
        ordered.sort();
        ordered.into_iter().map(|(_, id)| id.clone()).collect()
    }
}

/// What the task works on.
pub struct SlotPorts {
    /// Where slots are claimed.
    pub store: Arc<dyn InstanceStore>,
    /// The names that were ever offered.
    pub ledger: Arc<dyn ResourceLedger>,
    /// The devices as they are seen.
    pub devices: watch::Receiver<Arc<DeviceSnapshot>>,
    /// What is offered goes here.
    pub offers: watch::Sender<Arc<Offers>>,
    /// What is held goes here.
    pub held: watch::Sender<Arc<HeldSlots>>,
}

/// The task.
pub struct SlotTask {
    node: Arc<str>,
    config: SlotConfig,
    store: Arc<dyn InstanceStore>,
    ledger: Arc<dyn ResourceLedger>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    devices: watch::Receiver<Arc<DeviceSnapshot>>,
    books: Arc<dyn Books>,
    changes: watch::Receiver<u64>,
    requests: mpsc::Receiver<Request>,
    offers: watch::Sender<Arc<Offers>>,
    held: watch::Sender<Arc<HeldSlots>>,
    report: watch::Sender<Arc<SlotReport>>,
    metrics: Arc<Metrics>,
    /// What was last taken over.
    met: (Arc<InstanceSet>, Arc<DeviceSnapshot>),
    owners: Owners,
    holds: Holds,
    offerer: Offerer,
    known: BTreeSet<String>,
    looking: JoinSet<Look>,
    next_look: Option<Instant>,
    /// Nothing is offered before it is known who holds what, or before this moment.
    ready: Option<Instant>,
    /// Claims whose allocation was answered with an error: nobody can have them.
    void: BTreeMap<Unit, u64>,
    problems: BTreeSet<String>,
    look_problems: Vec<String>,
}

/// The questions' way in, made before the task because the kubelet's side needs it first.
pub struct SlotDoor {
    handle: SlotHandle,
    requests: mpsc::Receiver<Request>,
}

impl SlotDoor {
    /// A door for that node.
    pub fn new(node: &str) -> Self {
        let (sender, requests) = mpsc::channel(QUEUE);
        Self {
            handle: SlotHandle {
                node: node.into(),
                requests: sender,
            },
            requests,
        }
    }

    /// Where questions go.
    pub fn handle(&self) -> SlotHandle {
        self.handle.clone()
    }
}

impl SlotTask {
    /// The task and what it publishes.
    pub fn new(
        door: SlotDoor,
        config: SlotConfig,
        ports: SlotPorts,
        books: Arc<dyn Books>,
        metrics: Arc<Metrics>,
    ) -> (Self, watch::Receiver<Arc<SlotReport>>) {
        let (report, seen) = watch::channel(Arc::default());
        let task = Self {
            node: door.handle.node,
            config,
            instances: ports.store.instances(),
            known: ports.ledger.names(),
            store: ports.store,
            ledger: ports.ledger,
            devices: ports.devices,
            changes: books.changes(),
            books,
            requests: door.requests,
            offers: ports.offers,
            held: ports.held,
            report,
            metrics,
            met: (Arc::default(), Arc::default()),
            owners: Owners::default(),
            holds: Holds::default(),
            offerer: Offerer::default(),
            looking: JoinSet::new(),
            next_look: Some(Instant::now()),
            ready: Some(Instant::now() + FIRST_LOOK),
            void: BTreeMap::new(),
            problems: BTreeSet::new(),
            look_problems: Vec::new(),
        };
        (task, seen)
    }

    /// Runs until `shutdown`. A write that has begun is finished first.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Ended> {
        self.meet();
        loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                changed = self.instances.changed() => changed.map_err(|_| Ended("Instances"))?,
                changed = self.devices.changed() => changed.map_err(|_| Ended("devices"))?,
                Some(first) = self.requests.recv() => self.allocate(first).await,
                Some(look) = self.looking.join_next() => match look {
                    Ok(look) => self.see(&look).await,
                    Err(_) => tracing::error!("looking at the kubelet's books broke down, which is a bug"),
                },
                changed = self.changes.changed() => {
                    changed.map_err(|_| Ended("the kubelet's folder"))?;
                    self.look_by(Instant::now() + SOON);
                }
                () = until(self.next_look) => self.look(),
                () = until(self.ready) => self.ready = None,
            }
            self.meet();
            self.take_back_void().await;
            self.adopt().await;
            self.publish().await;
        }
    }

    /// Takes over what the store and the devices say now.
    fn meet(&mut self) {
        let instances = Arc::clone(&self.instances.borrow_and_update());
        let devices = Arc::clone(&self.devices.borrow_and_update());
        let (old_instances, old_devices) = &self.met;
        let same = Arc::ptr_eq(old_instances, &instances);
        if !same || !Arc::ptr_eq(old_devices, &devices) {
            self.owners = Owners::new(&self.node, &devices, &instances);
        }
        if !same {
            self.holds.meet(&self.node, &instances);
        }
        self.met = (instances, devices);
    }

    fn look_by(&mut self, at: Instant) {
        // While nothing is held, no event can mean anything.
        if self.ready.is_some()
            || !self.holds.by_unit.is_empty()
            || self.books.incarnation() != self.holds.incarnation()
        {
            self.next_look = Some(self.next_look.map_or(at, |next| next.min(at)));
        }
    }

    fn look(&mut self) {
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
    async fn see(&mut self, look: &Look) {
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

    async fn release(&mut self, back: Vec<(Unit, Reason)>) {
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

    /// Decides all allocations that wait, with one write.
    async fn allocate(&mut self, first: Request) {
        let mut batch = vec![first];
        while batch.len() < QUEUE
            && let Ok(next) = self.requests.try_recv()
        {
            batch.push(next);
        }
        self.meet();
        let instances = Arc::clone(&self.instances.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let mut reserved = BTreeSet::new();
        let mut decided: Vec<(Request, Result<Vec<Chosen>, Refusal>)> = Vec::new();
        for request in batch {
            let chosen = match self.check_holders(&request).await {
                Err(refusal) => Err(refusal),
                Ok(()) => Ground {
                    node: &self.node,
                    devices: &devices,
                    instances: &instances,
                    owners: &self.owners,
                    holds: &self.holds,
                }
                .choose(&request.resource, &request.ids, &mut reserved),
            };
            decided.push((request, chosen));
        }
        let mut changes = Vec::new();
        let mut counts = Vec::new();
        for (_, chosen) in &decided {
            let own = chosen
                .as_ref()
                .map_or_else(|_| Vec::new(), |chosen| claim::claims(chosen));
            counts.push(own.len());
            changes.extend(own);
        }
        let mut results = if changes.is_empty() {
            Vec::new()
        } else {
            self.store.apply(changes).await
        }
        .into_iter();
        for ((request, chosen), count) in decided.into_iter().zip(counts) {
            let written: Vec<_> = results.by_ref().take(count).collect();
            let result = match chosen {
                Err(refusal) => Err(refusal),
                Ok(chosen) => match written.into_iter().find_map(Result::err) {
                    Some(error) => {
                        self.take_back(&chosen).await;
                        Err(refused(&error))
                    }
                    None => Ok(chosen),
                },
            };
            self.answer(request, result).await;
        }
    }

    /// Whether nobody who lives has what is asked for. A slot this node has is asked for again by the app container of the
    /// same pod, or after its pod has ended; or by a kubelet that has lost its books.
    async fn check_holders(&mut self, request: &Request) -> Result<(), Refusal> {
        let seen = |id: &String| {
            let unit = Unit {
                resource: request.resource.clone(),
                id: id.clone(),
            };
            let hold = self.holds.by_unit.get(&unit)?;
            match &hold.holder {
                Holder::Seen { incarnation, .. } => Some((unit, *incarnation)),
                Holder::Unseen(_) => None,
            }
        };
        let seen: Vec<_> = request.ids.iter().filter_map(seen).collect();
        if seen.is_empty() {
            return Ok(());
        }
        let current = self.books.incarnation();
        if seen.iter().any(|(_, incarnation)| *incarnation != current) {
            let uids = self.uids(seen.iter().map(|(unit, _)| unit));
            if let Ok(look) = timeout(ASK, self.books.look(uids)).await {
                let back = self.holds.see(&look, self.config.grace);
                self.release(back).await;
                self.meet();
            }
        }
        let listed = timeout(ASK, self.books.listed()).await.ok().flatten();
        for (unit, _) in &seen {
            if let Some(pods) = listed.as_ref().and_then(|listed| listed.get(unit)) {
                let pods: Vec<String> = pods.iter().map(ToString::to_string).collect();
                return Err(Refusal::Unavailable(format!(
                    "{unit} is held by {}",
                    pods.join(", ")
                )));
            }
            let hold = self.holds.by_unit.get(unit);
            if let Some(hold) = hold.filter(|hold| hold.holder.is_lost()) {
                return Err(Refusal::Unavailable(format!(
                    "{unit} is held by {}, which is still on this node although the kubelet has lost its record of it",
                    hold.holder.words().unwrap_or_default()
                )));
            }
        }
        Ok(())
    }

    fn uids<'a>(&self, units: impl Iterator<Item = &'a Unit>) -> BTreeSet<String> {
        units
            .filter_map(|unit| match &self.holds.by_unit.get(unit)?.holder {
                Holder::Seen { pods, .. } => Some(pods),
                Holder::Unseen(_) => None,
            })
            .flatten()
            .filter_map(|pod| pod.uid.clone())
            .collect()
    }

    async fn answer(&mut self, request: Request, result: Result<Vec<Chosen>, Refusal>) {
        self.meet();
        let took = request.asked.elapsed();
        let late = took >= ALLOCATE || request.answer.is_closed();
        let result = match result {
            Ok(chosen) if late => {
                self.take_back(&chosen).await;
                Err(Refusal::Unavailable("decided too late".to_owned()))
            }
            other => other,
        };
        self.metrics.allocated(
            match &result {
                Ok(_) => "ok",
                Err(_) => "refused",
            },
            took,
        );
        match result {
            Ok(chosen) => {
                let name = resource_name(&request.resource).unwrap_or_default();
                let through = self.owners.configurations.contains_key(name);
                let allocation = claim::answer(through.then_some(name), &chosen);
                let units = chosen.iter().map(|one| one.unit.clone()).collect();
                self.holds.allocated(&units, Instant::now());
                for unit in &units {
                    self.void.remove(unit);
                }
                let slots: Vec<&str> = chosen.iter().map(|one| one.slot.as_str()).collect();
                tracing::info!(
                    resource = request.resource,
                    slots = slots.join(" "),
                    "allocated"
                );
                if request.answer.send(Ok(allocation)).is_err() {
                    self.take_back(&chosen).await;
                }
                self.look_by(Instant::now() + SOON);
            }
            Err(refusal) => {
                tracing::warn!(
                    resource = request.resource,
                    reason = refusal.to_string(),
                    "allocation refused"
                );
                drop(request.answer.send(Err(refusal)));
            }
        }
    }

    /// Gives back what an allocation claimed that is answered with an error: the kubelet holds nothing of it.
    async fn take_back(&mut self, chosen: &[Chosen]) {
        self.meet();
        for one in chosen.iter().filter(|one| one.claim.is_some()) {
            let epoch = self
                .holds
                .by_unit
                .get(&one.unit)
                .map_or(0, |hold| hold.epoch);
            self.void.insert(one.unit.clone(), epoch);
        }
        self.take_back_void().await;
    }

    /// Releases claims that nobody can have, as far as the store shows them.
    async fn take_back_void(&mut self) {
        if self.void.is_empty() {
            return;
        }
        let holds = &self.holds.by_unit;
        self.void
            .retain(|unit, epoch| holds.get(unit).is_none_or(|hold| hold.epoch == *epoch));
        let back: Vec<(Unit, Reason)> = self
            .void
            .keys()
            .filter(|unit| holds.get(unit).is_some_and(|hold| hold.stored))
            .map(|unit| (unit.clone(), Reason::Refused))
            .collect();
        self.release(back).await;
    }

    /// Claims what the kubelet is seen to have and the store says of nobody: Instances that were made anew.
    async fn adopt(&mut self) {
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

    async fn publish(&mut self) {
        let held = self.holds.held();
        self.held.send_if_modified(|old| {
            let differs = **old != held;
            if differs {
                *old = Arc::new(held);
            }
            differs
        });
        if self.ready.is_some() {
            return;
        }
        let instances = Arc::clone(&self.instances.borrow());
        let devices = Arc::clone(&self.devices.borrow());
        let limits = Limits {
            live: self.config.instance_resources,
            ever: offers::NAMES_EVER.max(self.config.instance_resources),
        };
        let offered = self.offerer.offer(
            &self.node,
            &devices,
            &instances,
            &self.owners,
            &self.holds,
            &self.known,
            limits,
        );
        let mut problems: BTreeSet<String> = offered.problems;
        // A name counts once a kubelet may have put it into the Node object.
        if !offered.new_names.is_empty() && self.books.incarnation().is_some() {
            self.known.extend(offered.new_names.iter().cloned());
            // What is offered without being written down is only forgotten over a restart.
            if let Err(error) = self.ledger.add(offered.new_names).await {
                problems.insert(words::of(&error));
            }
        }
        self.offers.send_if_modified(|old| {
            let same = old.len() == offered.offers.len()
                && old
                    .iter()
                    .zip(&offered.offers)
                    .all(|((one, a), (two, b))| one == two && Arc::ptr_eq(a, b));
            if !same {
                *old = Arc::new(offered.offers);
            }
            !same
        });
        problems.extend(self.owners.problems.iter().cloned());
        problems.extend(self.problems.iter().cloned());
        problems.extend(self.look_problems.iter().cloned());
        let slots = self
            .holds
            .by_unit
            .iter()
            .map(|(unit, hold)| SlotView {
                slot: hold.slot.clone(),
                unit: unit.clone(),
                holder: hold.holder.words(),
                stored: hold.stored,
            })
            .collect();
        let report = SlotReport {
            slots,
            problems: problems.into_iter().collect(),
        };
        self.report.send_if_modified(|old| {
            let differs = **old != report;
            if differs {
                *old = Arc::new(report);
            }
            differs
        });
    }
}

fn refused(error: &StoreError) -> Refusal {
    Refusal::Unavailable(match error {
        StoreError::Conflict { key } => {
            format!("another node was quicker: slots of Instance {key} were claimed meanwhile")
        }
        StoreError::Unavailable { .. } => {
            format!("the claim cannot be written: {}", words::of(error))
        }
    })
}

#[cfg(test)]
mod tests;
