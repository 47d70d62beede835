//! Bind: chooses devices, reserves them, and binds the pod with one write that also names them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::allocation::{give_back, reserve};
use leafhost_core::instance::{Edit, Instance, InstanceKey, Reserved, Use};
use leafhost_core::ports::StoreError;
use leafhost_core::scheduling::{BindingArgs, Given, PodError};
use leafhost_core::slot::DeviceUsage;
use leafhost_core::text::chain;
use leafhost_select::ContainerRequest;
use tokio::time::{Instant, sleep, sleep_until};

use crate::filter::{Evaluator, NodeDevices};
use crate::release::SHOWN;
use crate::scheduler::{Scheduler, State};
use crate::world::{Number, Reservation, World};

/// Maximum number of attempts to choose devices for one Bind, which are `AGAIN` apart.
const TRIES: u32 = 5;
const AGAIN: Duration = Duration::from_millis(100);
/// Age below which Bind reuses the devices that are already reserved for the pod; older reservations are replaced.
const FRESH: Duration = Duration::from_secs(15);

/// Number of Binds under way and waiting events together, above which further events are dropped.
const MOST_TASKS: usize = 5_000;

/// Reason that a pod is not bound.
struct NotBound {
    why: String,
    /// True if no request that was already sent can still bind the pod.
    is_sure: bool,
}

impl From<String> for NotBound {
    fn from(why: String) -> Self {
        Self { why, is_sure: true }
    }
}

/// Instance as it was seen, the slot to reserve, and the reservation to write.
type Wanted = (Arc<Instance>, String, Reserved);

impl Scheduler {
    /// Binds a pod that has passed Filter. Refuses a pod that is being bound already.
    pub(crate) async fn bind_once(&self, target: BindingArgs) -> Result<(), String> {
        let asked = {
            let state = &mut *self.state();
            let asked = state.filtered.asked(&target.uid, Instant::now());
            let asked = asked.ok_or(
                "the pod has not passed Filter here within a minute; each scheduler must call only one extender",
            )?;
            if !state.binding.insert(target.uid.clone()) {
                return Err("the pod is being bound already".to_owned());
            }
            state.filtered.take_on(&target.uid, &target.node);
            asked
        };
        let bound = match self.lock(&target).await {
            Ok(()) => self.reserve_and_bind(&target, &asked).await,
            Err(why) => Err(why.into()),
        };
        if bound.as_ref().is_err_and(|error| error.is_sure) {
            self.unlock(&target).await;
        }
        let bound = bound.map_err(|error| error.why);
        if let Err(why) = &bound {
            self.record_event(&target, "DevicesRefused", why.clone());
        }
        {
            let state = &mut *self.state();
            state.binding.remove(&target.uid);
            match &bound {
                Ok(()) => state.filtered.remove(&target.uid),
                Err(_) => state.filtered.take_nothing(&target.uid),
            }
        }
        if bound.is_err() {
            self.changed.notify_one();
        }
        bound
    }

    /// Records a Kubernetes event for the pod in a background task. Events are written one at a time, so that a burst of pods is bound before all its
    /// events are written, and are dropped if too many tasks run.
    fn record_event(&self, target: &BindingArgs, reason: &'static str, message: String) {
        if self.tasks.len() > MOST_TASKS {
            return;
        }
        let (cluster, turn) = (Arc::clone(&self.cluster), Arc::clone(&self.event_turn));
        let (target, is_warning) = (target.clone(), reason == "DevicesRefused");
        self.tasks.spawn(async move {
            if let Ok(_permit) = turn.acquire().await {
                cluster
                    .record_event(&target, reason, &message, is_warning)
                    .await;
            }
        });
    }

    async fn reserve_and_bind(
        &self,
        target: &BindingArgs,
        asked: &[ContainerRequest],
    ) -> Result<(), NotBound> {
        self.replace(target).await?;
        self.read_unanswered(target).await?;
        let own = self.reserved_of(&target.uid);
        // A reservation that is about to be released, here or by another extender, is not reused.
        let reusable = self.reusable(target, asked, &own);
        let given = if let Some(given) = reusable.filter(|_| self.is_fresh(&target.uid)) {
            given
        } else {
            if !own.is_empty() && self.is_bound(target).await? {
                return Ok(());
            }
            if !self.release(own, "begun-anew").await {
                return Err(kept().into());
            }
            self.reserve(target, asked).await?
        };
        match self.bind_pod(target, &given).await {
            Ok(()) => {
                self.record_event(target, "DevicesReserved", describe(&given));
                Ok(())
            }
            Err(error) => {
                if error.is_sure {
                    let own = self.reserved_of(&target.uid).into_iter();
                    let own = own.filter(|one| one.node == target.node);
                    self.release(own.collect(), "not-bound").await;
                }
                Err(error)
            }
        }
    }

    /// Reads the Instances whose last write for the pod was not answered. Without them, the pod could get two reservations for one request.
    async fn read_unanswered(&self, target: &BindingArgs) -> Result<(), String> {
        let unanswered = self.state().unanswered.clone();
        for one in unanswered.iter().filter(|(uid, _)| *uid == target.uid) {
            let (_, key) = one;
            let read = self.cluster.instance(key).await;
            let read = read.map_err(|error| {
                format!("cannot read Instance {key}, whose last write was not answered: {error}; retrying")
            })?;
            let state = &mut *self.state();
            match read {
                Some(instance) => drop(state.update_instance(instance)),
                None => state.world.remove(key),
            }
            state.unanswered.remove(one);
        }
        Ok(())
    }

    /// Releases the reservations that a former pod of the same name has on the node, because the agent could not distinguish the two pods. The former
    /// pod is gone, as the API server keeps one pod per name. Slots that a container still holds are left to the agent of the node.
    async fn replace(&self, target: &BindingArgs) -> Result<(), String> {
        let is_before =
            |one: &Reservation| one.uid != target.uid && one.node == target.node && !one.is_held;
        let before = |state: &State| -> Vec<Reservation> {
            let reserved = state.world.reserved_for_name(&target.key()).into_iter();
            reserved.filter(|one| is_before(one)).cloned().collect()
        };
        let now = Instant::now();
        let since = {
            let state = &mut *self.state();
            let all = before(state).into_iter();
            let all = all.map(|one| *state.unbound.entry(one.uid).or_insert(now));
            all.max()
        };
        if let Some(since) = since {
            sleep_until(since + SHOWN).await;
        }
        let all = {
            let state = self.state();
            // A third pod may have taken the name since.
            if state.filtered.asked(&target.uid, Instant::now()).is_none() {
                return Err("the pod is gone".to_owned());
            }
            before(&state)
        };
        if self.release(all, "replaced").await {
            Ok(())
        } else {
            Err("cannot remove the earlier pod of the same name from the node; retrying".to_owned())
        }
    }

    /// Returns true if the pod is bound to the node already and the scheduler has not seen it yet. Fails if the pod is bound to another node.
    async fn is_bound(&self, target: &BindingArgs) -> Result<bool, NotBound> {
        let pod = match self.cluster.pod(&target.key()).await {
            Ok(pod) => pod.filter(|pod| pod.uid == target.uid),
            Err(error) => {
                return Err(NotBound {
                    why: format!("cannot read the pod: {error}"),
                    is_sure: false,
                });
            }
        };
        let pod = pod.ok_or_else(|| "the pod is gone".to_owned())?;
        match &*pod.node {
            "" => Ok(false),
            node if node == target.node => Ok(true),
            node => Err(format!("the pod is bound to node {node} already").into()),
        }
    }

    /// Returns true unless the pod has had its reservation for `FRESH` or longer without being bound.
    fn is_fresh(&self, uid: &str) -> bool {
        let since = self.state().unbound.get(uid).copied();
        since.is_none_or(|since| since.elapsed() < FRESH)
    }

    fn reserved_of(&self, uid: &str) -> Vec<Reservation> {
        let state = self.state();
        let own = state.world.reserved_for(uid).into_iter();
        own.cloned().collect()
    }

    /// Returns the names of the Instances by container if the reservations `own` are exactly what the pod asks for now, all on the target's node.
    fn reusable(
        &self,
        target: &BindingArgs,
        asked: &[ContainerRequest],
        own: &[Reservation],
    ) -> Option<Given> {
        if own.is_empty() {
            return None;
        }
        let state = &mut *self.state();
        let evaluator = Evaluator::new(&state.world, &mut state.verdicts, &target.uid, asked);
        let taken = evaluator.of_own().take(&target.node, &[]).ok()?;
        let uses = uses(asked, &taken)?;
        let is_wanted = |one: &Reservation| {
            let number = state.world.number(&one.device);
            let wanted = number.and_then(|number| uses.get(&number));
            let device = state.world.get(&one.device);
            let found = device.and_then(|device| device.instance.reserved(&one.slot));
            let found = found.map(|reserved| &reserved.uses);
            one.node == target.node && wanted.is_some() && wanted == found
        };
        let is_whole = own.len() == uses.len() && own.iter().all(is_wanted);
        is_whole.then(|| given(asked, &taken, &state.world))
    }

    /// Chooses and reserves devices, and chooses again if another pod took one of them first. Returns the names of the Instances by container.
    async fn reserve(
        &self,
        target: &BindingArgs,
        asked: &[ContainerRequest],
    ) -> Result<Given, String> {
        for attempt in 0..TRIES {
            if attempt > 0 {
                sleep(AGAIN).await;
            }
            let (wanted, given, slots) = {
                let state = &mut *self.state();
                let taken = choice(state, target, asked)?;
                let Some(wanted) = wanted(state, target, asked, &taken) else {
                    continue;
                };
                let given = given(asked, &taken, &state.world);
                let filtered = &mut state.filtered;
                filtered.take(&target.uid, &target.node, taken.devices);
                let slots = wanted
                    .iter()
                    .map(|(instance, slot, _)| (instance.key(), slot.clone()));
                let slots: Vec<(InstanceKey, String)> = slots.collect();
                state.writing.extend(slots.iter().cloned());
                (wanted, given, slots)
            };
            let usage = DeviceUsage::of_pod(&target.uid, &target.node);
            let edits = wanted.into_iter().map(|(instance, slot, reserved)| {
                (instance, vec![reserve(&slot, usage.clone(), reserved)])
            });
            let written = self.cluster.edit(edits.collect()).await;
            let mut errors = Vec::new();
            {
                let state = &mut *self.state();
                for slot in &slots {
                    state.writing.remove(slot);
                }
                for result in written {
                    match result {
                        Ok(Some(instance)) => drop(state.update_instance(instance)),
                        Ok(None) => {}
                        Err(error) => {
                            state.edit_failed(&target.uid, &error);
                            errors.push(error);
                        }
                    }
                }
            }
            if errors.is_empty() {
                // The slots are reserved now.
                self.state().filtered.take_nothing(&target.uid);
                return Ok(given);
            }
            self.metrics.conflict();
            let own = self.reserved_of(&target.uid);
            if !self.release(own, "conflict").await {
                return Err(kept());
            }
            // After a write without an answer, nothing more is reserved until the Instance has been read.
            let mut errors = errors.iter();
            let last = errors.find(|error| {
                !error.is_outdated() && !matches!(error, StoreError::Unavailable { .. })
            });
            if let Some(error) = last {
                let why = chain(error);
                return Err(format!("cannot reserve devices: {why}"));
            }
        }
        Err("other pods reserved the devices first; retrying".to_owned())
    }

    /// Writes the Binding. After an error, reads the pod to learn whether it was bound.
    async fn bind_pod(&self, target: &BindingArgs, given: &Given) -> Result<(), NotBound> {
        let error = match self.cluster.bind(target, given).await {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        let why = format!("cannot bind the pod: {error}");
        match self.cluster.pod(&target.key()).await {
            Ok(Some(pod)) if pod.uid == target.uid && pod.node == target.node => Ok(()),
            Ok(found) => {
                let is_late = found.is_some_and(|pod| pod.uid == target.uid && pod.node.is_empty());
                // A Binding without an answer may still be applied. The reservation is then judged later.
                let is_sure = !(is_late && matches!(error, PodError::Unknown(_)));
                Err(NotBound { why, is_sure })
            }
            Err(_) => Err(NotBound {
                why,
                is_sure: false,
            }),
        }
    }

    /// Releases slots. Returns false if a write failed, unless it failed because the Instance had changed.
    pub(crate) async fn release(&self, all: Vec<Reservation>, reason: &'static str) -> bool {
        if all.is_empty() {
            return true;
        }
        let mut edits: BTreeMap<InstanceKey, (Arc<Instance>, Vec<Edit>)> = BTreeMap::new();
        let uids: BTreeSet<String> = all.iter().map(|one| one.uid.clone()).collect();
        {
            let state = self.state();
            for one in all {
                if let Some(device) = state.world.get(&one.device) {
                    tracing::info!(slot = one.slot, pod = %one.pod, reason, "released");
                    let (_, edits) = edits
                        .entry(one.device.clone())
                        .or_insert_with(|| (Arc::clone(&device.instance), Vec::new()));
                    let usage = DeviceUsage::of_pod(&one.uid, &one.node);
                    edits.push(give_back(&one.slot, &usage));
                }
            }
        }
        let count: Vec<usize> = edits.values().map(|(_, edits)| edits.len()).collect();
        let written = self.cluster.edit(edits.into_values().collect()).await;
        let (mut is_better, mut is_done) = (false, true);
        let state = &mut *self.state();
        for (result, count) in written.into_iter().zip(count) {
            match result {
                Ok(instance) => {
                    (0..count).for_each(|_| self.metrics.released(reason));
                    if let Some(instance) = instance {
                        is_better |= state.update_instance(instance);
                    }
                }
                Err(error) => {
                    for uid in &uids {
                        state.edit_failed(uid, &error);
                    }
                    if error.is_outdated() {
                        continue;
                    }
                    is_done = false;
                    let error = chain(&error);
                    tracing::warn!(error, "cannot release slots; retrying");
                }
            }
        }
        if is_better {
            self.changed.notify_one();
        }
        is_done
    }
}

/// Returns the reason why nothing is reserved for a pod that still has slots of an earlier Bind: its containers would get the devices of both Binds.
fn kept() -> String {
    "cannot release the slots that are reserved for the pod; retrying".to_owned()
}

/// Chooses devices on the target's node, if possible none that other pods are about to take.
fn choice(
    state: &mut State,
    target: &BindingArgs,
    asked: &[ContainerRequest],
) -> Result<NodeDevices, String> {
    let now = Instant::now();
    let taken = state.filtered.taken(&target.uid, now);
    let taken = taken.get(target.node.as_str()).cloned().unwrap_or_default();
    let mut evaluator = Evaluator::new(&state.world, &mut state.verdicts, &target.uid, asked);
    let found = evaluator.take(&target.node, &taken);
    let found = found.or_else(|why| {
        if taken.is_empty() {
            return Err(why);
        }
        evaluator.take(&target.node, &[])
    });
    found.map_err(|why| format!("the node no longer has the devices: {why}"))
}

/// Returns the containers that use each chosen device.
fn uses(asked: &[ContainerRequest], taken: &NodeDevices) -> Option<BTreeMap<Number, Vec<Use>>> {
    let mut uses: BTreeMap<Number, Vec<Use>> = BTreeMap::new();
    let mut numbers: BTreeMap<usize, u32> = BTreeMap::new();
    let of = |index: usize| {
        let own = taken.choices.iter().filter(|one| one.asked == index);
        u32::try_from(own.count()).unwrap_or(u32::MAX)
    };
    for (choice, device) in taken.choices.iter().zip(&taken.devices) {
        let one = asked.get(choice.asked)?;
        let request = one.requests.get(choice.request)?;
        let alternative = request.alternatives.get(choice.alternative)?;
        let number = numbers.entry(choice.asked).or_default();
        uses.entry(*device).or_default().push(Use {
            container: one.container.clone(),
            place: one.place,
            number: *number,
            of: of(choice.asked),
            request: alternative.whole_name(request),
        });
        *number += 1;
    }
    Some(uses)
}

/// Returns the slots to reserve; `None` if every free slot of a chosen device is being written.
fn wanted(
    state: &State,
    target: &BindingArgs,
    asked: &[ContainerRequest],
    taken: &NodeDevices,
) -> Option<Vec<Wanted>> {
    let uses = uses(asked, taken)?;
    let reserved = uses.into_iter().map(|(number, uses)| {
        let device = state.world.device(number)?;
        let key = device.instance.key();
        let mut slots = device.free.iter();
        let slot = slots.find(|slot| !state.writing.contains(&(key.clone(), (*slot).clone())))?;
        let reserved = Reserved {
            pod: target.key().to_string(),
            places: asked.iter().map(|one| one.place).collect(),
            uses,
        };
        Some((Arc::clone(&device.instance), slot.clone(), reserved))
    });
    reserved.collect()
}

/// Returns the names of the Instances that each container gets.
pub fn given(asked: &[ContainerRequest], taken: &NodeDevices, world: &World) -> Given {
    let mut given = Given::new();
    for (choice, device) in taken.choices.iter().zip(&taken.devices) {
        if let (Some(one), Some(device)) = (asked.get(choice.asked), world.device(*device)) {
            let names = given.entry(one.container.clone()).or_default();
            names.push(device.instance.metadata.name.clone());
        }
    }
    given
}

fn describe(given: &Given) -> String {
    let each = given.iter();
    let each = each.map(|(container, names)| format!("{container} gets {}", names.join(" and ")));
    each.collect::<Vec<_>>().join(", ")
}
