//! The extender: its state, its answers to a scheduler, and its view of the watches.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use leafhost_core::instance::{Instance, InstanceKey};
use leafhost_core::ports::StoreError;
use leafhost_core::resource_names::ResourceNames;
use leafhost_core::scheduling::{BindingArgs, Cluster, NodeSeen, Observer, Pod, PodKey};
use leafhost_core::wait::until;
use leafhost_select::{ContainerRequest, InvalidRequest, Verdicts, read};
use tokio::sync::{Notify, Semaphore};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::extender::{Args, BindingResult, FilterResult, HostPriority};
use crate::filter::{Evaluator, filter};
use crate::filtered_pods::FilteredPods;
use crate::metrics::Metrics;
use crate::node_queues::NodeQueues;
use crate::offered::OfferedNodes;
use crate::world::World;

/// Debounce time, in which further events of one change are collected.
const SOON: Duration = Duration::from_millis(100);
/// Maximum number of pods whose parsed annotations are kept.
const MOST_READ: usize = 10_000;

/// Scheduler extender.
pub struct Scheduler {
    pub(crate) cluster: Arc<dyn Cluster>,
    pub(crate) metrics: Arc<Metrics>,
    state: Mutex<State>,
    /// Notified of changes that may release slots or help waiting pods.
    pub(crate) changed: Notify,
    /// Queues of Binds by node; `None` if nodes are not locked.
    pub(crate) locks: Option<NodeQueues>,
    /// Background tasks: Binds, which continue when the scheduler hangs up, and events.
    pub(crate) tasks: TaskTracker,
    /// Permit to write an event, one at a time; closed when the scheduler stops.
    pub(crate) event_turn: Arc<Semaphore>,
}

/// State of the extender.
#[derive(Default)]
pub(crate) struct State {
    pub world: World,
    pub verdicts: Verdicts,
    pub filtered: FilteredPods,
    pub offered: OfferedNodes,
    /// Uids of the pods that are being bound.
    pub binding: BTreeSet<String>,
    /// Slots that are being written.
    pub writing: BTreeSet<(InstanceKey, String)>,
    /// Pods, by uid, each with an Instance whose last write for that pod was not answered, so that the pod's
    /// reservation there is unknown.
    pub unanswered: BTreeSet<(String, InstanceKey)>,
    /// Instant at which a pod's reservation or lock was first judged, by uid; removed when the pod is bound, ends or is gone.
    pub unbound: BTreeMap<String, Instant>,
    /// Instant at which devices were last found for a waiting pod, by uid: spaces its retries.
    pub tried: BTreeMap<String, Instant>,
    /// Nodes whose devices have changed in favour of pods since the waiting pods were last considered.
    pub better: BTreeSet<String>,
    /// Waiting pods that have not yet been considered for all nodes.
    pub unlooked: BTreeSet<PodKey>,
    /// Annotation of each pod and its parsed requests, by uid.
    read: HashMap<String, (String, Read)>,
}

/// Parsed requests of a pod, or the reason that they are invalid.
type Read = Result<Arc<Vec<ContainerRequest>>, InvalidRequest>;

impl State {
    /// Stores an Instance. Returns true if it may serve a pod better than before or if its reservations have changed.
    pub fn update_instance(&mut self, instance: Arc<Instance>) -> bool {
        let key = instance.key();
        let before = self.world.reserved_of(&key).to_vec();
        let is_better = self.world.put(instance);
        if let Some(device) = self.world.get(&key).filter(|_| is_better) {
            self.better.extend(device.nodes.iter().cloned());
        }
        is_better || self.world.reserved_of(&key) != before
    }

    /// Records the error of an edit for a pod. An Instance that is gone is removed, since a late answer may have shown it after its deletion.
    pub fn edit_failed(&mut self, uid: &str, error: &StoreError) {
        match error {
            StoreError::Gone { key } => self.world.remove(key),
            StoreError::Unknown { key, .. } => {
                self.unanswered.insert((uid.to_owned(), key.clone()));
            }
            _ => {}
        }
    }

    /// Forgets the state of a pod that is kept only until the pod is bound.
    fn forget_waiting(&mut self, uid: &str) {
        self.filtered.remove(uid);
        self.unbound.remove(uid);
        self.offered.remove(uid);
    }

    /// Marks all known pods, so that devices are searched for them on all nodes.
    fn look_at_all(&mut self) {
        self.unlooked.extend(self.world.pods().keys().cloned());
    }

    /// Returns the requests of a pod, parsed again only if its annotation has changed.
    pub fn asked(&mut self, pod: &Pod) -> Read {
        if let Some((text, read)) = self.read.get(&pod.uid)
            && *text == pod.devices
        {
            return read.clone();
        }
        let verdicts = &mut self.verdicts;
        let check = |text: &str| verdicts.expression(text).map(drop);
        let asked = read(&pod.devices, &pod.containers, check).map(Arc::new);
        if self.read.len() >= MOST_READ {
            self.read.clear();
        }
        let known = (pod.devices.clone(), asked.clone());
        self.read.insert(pod.uid.clone(), known);
        asked
    }
}

impl Scheduler {
    /// Creates an extender that acts through `cluster`. It answers once the watches have shown Instances and pods. If `locks` is true, it locks
    /// each node until the pod that is bound to it has its devices.
    pub fn new(cluster: Arc<dyn Cluster>, metrics: Arc<Metrics>, locks: bool) -> Self {
        Self {
            cluster,
            metrics,
            state: Mutex::default(),
            changed: Notify::new(),
            locks: locks.then(NodeQueues::default),
            tasks: TaskTracker::new(),
            event_turn: Arc::new(Semaphore::new(1)),
        }
    }

    /// Stores an Instance that a watch or a write has shown, and wakes the tasks that wait for such a change.
    pub(crate) fn update_instance(&self, instance: Arc<Instance>) {
        if self.state().update_instance(instance) {
            self.changed.notify_one();
        }
        self.may_be_unlocked();
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns true once Instances and pods were listed, and Nodes if the extender locks them.
    pub fn is_ready(&self) -> bool {
        let state = self.state();
        let has_nodes = self.locks.is_none() || state.world.locks.is_some();
        state.world.is_read() && has_nodes
    }

    /// Releases slots, restores lost ones and makes schedulers retry waiting pods until `stop` is cancelled; then waits for Binds under way.
    pub async fn run(self: Arc<Self>, stop: CancellationToken) {
        stop.run_until_cancelled(self.keep()).await;
        // Drops events that wait: an API server that does not answer would delay the end by the time limit of each.
        self.event_turn.close();
        self.tasks.close();
        self.tasks.wait().await;
    }

    async fn keep(&self) {
        loop {
            let restored = self.restore().await;
            let released = self.release_over().await;
            let woken = self.try_again().await;
            self.count();
            let next = [restored, released, woken].into_iter().flatten().min();
            tokio::select! {
                () = self.changed.notified() => sleep(SOON).await,
                () = until(next) => {}
            }
        }
    }

    fn count(&self) {
        let state = self.state();
        let waiting = state.world.pods().values();
        let waiting = waiting.filter(|pod| pod.node.is_empty() && !pod.has_ended);
        self.metrics
            .seen(state.world.reserved().count(), waiting.count());
    }

    /// Answers a Filter request: the nodes that have the devices a pod wants.
    pub fn filter(&self, args: Args) -> FilterResult {
        let begun = Instant::now();
        let result = self.filtered(args).unwrap_or_else(|error| FilterResult {
            error,
            ..FilterResult::default()
        });
        let label = match (&*result.error, result.node_names.len()) {
            ("", 0) => "unfit",
            ("", _) => "ok",
            _ => "error",
        };
        self.metrics.called("filter", label, begun.elapsed());
        result
    }

    fn filtered(&self, args: Args) -> Result<FilterResult, String> {
        let names = args.node_names.ok_or(
            "the scheduler sends whole Node objects; set nodeCacheCapable: true for this extender",
        )?;
        let Some(pod) = args.pod.into_pod() else {
            // The pod asks for no device.
            return Ok(FilterResult {
                node_names: names,
                ..FilterResult::default()
            });
        };
        let now = Instant::now();
        let state = &mut *self.state();
        if !state.world.is_read() {
            return Err("Instances and pods are not read yet; retrying".to_owned());
        }
        let asked = state.asked(&pod).map_err(|error| error.to_string())?;
        let taken = state.filtered.taken(&pod.uid, now);
        let mut evaluator = Evaluator::new(&state.world, &mut state.verdicts, &pod.uid, &asked);
        let candidates = names.iter().map(String::as_str);
        let (fitting, failed) = filter(&mut evaluator, candidates, &taken);
        drop(taken);
        let result = FilterResult {
            node_names: fitting.iter().map(|(node, _)| node.clone()).collect(),
            failed_and_unresolvable_nodes: failed,
            ..FilterResult::default()
        };
        if fitting.is_empty() {
            state.filtered.remove(&pod.uid);
            state.offered.put(&pod.uid, names);
        } else {
            let by_node = fitting.into_iter().collect();
            state.filtered.add(&pod.uid, (asked, by_node), now);
        }
        Ok(result)
    }

    /// Answers a Prioritize request. Nodes score by the share of used slots among the pod's Configurations, so that whole nodes stay free.
    pub fn prioritize(&self, args: Args) -> Vec<HostPriority> {
        let begun = Instant::now();
        let names = args.node_names.unwrap_or_default();
        let pod = args.pod.into_pod();
        let state = &mut *self.state();
        let asked = pod.and_then(|pod| state.asked(&pod).ok());
        let asked = asked.unwrap_or_default();
        let evaluator = Evaluator::new(&state.world, &mut state.verdicts, "", &asked);
        let owned: Vec<(&str, &str)> = evaluator.owned().collect();
        let score = |node: &str| {
            let (mut free, mut all) = (0, 0_usize);
            let devices = owned.iter();
            for (_, device) in devices.flat_map(|of| state.world.of_node(node, *of)) {
                free += device.free.len();
                let slots = usize::try_from(device.instance.spec.capacity);
                all = all.saturating_add(slots.unwrap_or(usize::MAX));
            }
            let used = all.saturating_sub(free).saturating_mul(10);
            i64::try_from(used.checked_div(all).unwrap_or(0)).unwrap_or(0)
        };
        let scores = names.into_iter().map(|host| HostPriority {
            score: score(&host),
            host,
        });
        let scores = scores.collect();
        self.metrics.called("prioritize", "ok", begun.elapsed());
        scores
    }

    /// Reserves devices for a pod and binds it.
    pub async fn bind(self: Arc<Self>, args: BindingArgs) -> BindingResult {
        let begun = Instant::now();
        let this = Arc::clone(&self);
        let bound = self.tasks.spawn(async move { this.bind_once(args).await });
        let bound = bound.await;
        let bound = bound.unwrap_or_else(|_| Err("Bind panicked; this is a bug".to_owned()));
        let label = if bound.is_ok() { "ok" } else { "error" };
        self.metrics.called("bind", label, begun.elapsed());
        BindingResult {
            error: bound.err().unwrap_or_default(),
        }
    }
}

impl Observer for Scheduler {
    fn listed(&self, instance: Arc<Instance>) {
        self.state().world.put_listed(instance);
    }

    fn instances(&self, all: BTreeSet<InstanceKey>) {
        let state = &mut *self.state();
        state.world.end_list(&all);
        state.look_at_all();
        self.changed.notify_one();
    }

    fn instance(&self, instance: Arc<Instance>) {
        self.update_instance(instance);
    }

    fn instance_gone(&self, key: &InstanceKey) {
        self.state().world.remove(key);
    }

    fn names(&self, names: Arc<ResourceNames>) {
        let state = &mut *self.state();
        state.world.name(names);
        state.look_at_all();
        self.changed.notify_one();
    }

    fn pods(&self, all: Vec<Pod>) {
        let state = &mut *self.state();
        state.world.list_pods(all);
        state.look_at_all();
        self.changed.notify_one();
    }

    fn pod(&self, pod: Pod) {
        let is_news = {
            let state = &mut *self.state();
            let is_over = pod.has_ended || !pod.node.is_empty();
            if is_over {
                state.forget_waiting(&pod.uid);
            }
            let before = state.world.put_pod(pod.clone());
            let is_news = before.as_ref() != Some(&pod);
            if is_news && !is_over {
                state.unlooked.insert(pod.key.clone());
            }
            is_news
        };
        if is_news {
            self.changed.notify_one();
            self.may_be_unlocked();
        }
    }

    fn pod_gone(&self, key: &PodKey) {
        let gone = {
            let state = &mut *self.state();
            let gone = state.world.remove_pod(key);
            if let Some(pod) = &gone {
                state.forget_waiting(&pod.uid);
                state.tried.remove(&pod.uid);
                state.read.remove(&pod.uid);
            }
            gone
        };
        if gone.is_some() {
            self.changed.notify_one();
            self.may_be_unlocked();
        }
    }

    fn nodes(&self, all: BTreeMap<String, NodeSeen>) {
        self.state().world.locks = Some(all);
        self.may_be_unlocked();
    }

    fn node(&self, name: String, seen: NodeSeen) {
        self.state().world.put_node(name, seen);
        self.may_be_unlocked();
    }

    fn node_gone(&self, name: &str) {
        if let Some(nodes) = &mut self.state().world.locks {
            nodes.remove(name);
        }
    }
}

#[cfg(test)]
mod tests;
