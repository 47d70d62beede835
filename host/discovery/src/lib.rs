//! The discovery task: Configurations × handlers → sessions → devices. It owns the registry and everything known of
//! sessions and devices; others read what it publishes.
//!
//! Knows neither names of Instances nor where they are kept.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::{Clock, later};
use leafhost_core::device::DeviceKey;
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfigurationSet, Handler, InstanceSet};
use leafhost_core::presence::Absent;
use leafhost_core::wait::{SourceEnded, until};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::devices::Unseen;
use crate::loader::HandlerSet;
use crate::registry::{Event, HandlerKey, Registry};

mod answers;
pub mod devices;
mod events;
pub mod loader;
mod metrics;
mod published;
pub mod registry;
mod report;
mod served;
mod session;
mod sync;

pub use metrics::Metrics;
pub use published::{
    CallResult, ConfigurationReport, DiscoveryReport, HandlerReport, SessionReport,
};

use served::Served;
use session::{Answer, SessionId};

/// Reports are at least this far apart: each is a document of all Configurations.
const SPACING: Duration = Duration::from_millis(200);
/// So many answers are taken in before what came of them is published; as many wait while the task is busy.
const ANSWERS: usize = 64;

/// What the task needs to know.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// The node's name.
    pub node: String,
    /// How long a handler may be Offline before it is removed.
    pub eviction: Duration,
    /// The time.
    pub clock: Clock,
}

/// The task.
pub struct DiscoveryTask {
    config: DiscoveryConfig,
    started: Timestamp,
    metrics: Arc<Metrics>,
    configurations: watch::Receiver<Arc<ConfigurationSet>>,
    handlers: watch::Receiver<Arc<HandlerSet>>,
    devices: watch::Sender<Arc<DeviceSnapshot>>,
    report: watch::Sender<Arc<DiscoveryReport>>,
    instances: watch::Receiver<Arc<InstanceSet>>,
    configuration_set: Arc<ConfigurationSet>,
    handler_set: Arc<HandlerSet>,
    registry: Registry,
    serving: BTreeMap<HandlerKey, Arc<dyn Handler>>,
    served: BTreeMap<ConfigurationKey, Served>,
    /// Devices the store knew at the start, until their Configuration is first seen.
    known: BTreeMap<ConfigurationKey, Unseen>,
    /// What was published goes by this.
    all_known: bool,
    /// When the next report is due, if something has changed since the last one.
    report_at: Option<Instant>,
    generation: u64,
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    tasks: JoinSet<()>,
    ids: HashMap<Id, SessionId>,
    /// Names of handlers that are counted in the metrics.
    counted: BTreeSet<String>,
}

impl DiscoveryTask {
    /// The task and what it publishes. The devices of `instances`, as the store first has them, stay until an answer
    /// says otherwise.
    pub fn new(
        config: DiscoveryConfig,
        metrics: Arc<Metrics>,
        configurations: watch::Receiver<Arc<ConfigurationSet>>,
        handlers: watch::Receiver<Arc<HandlerSet>>,
        instances: watch::Receiver<Arc<InstanceSet>>,
    ) -> (
        Self,
        watch::Receiver<Arc<DeviceSnapshot>>,
        watch::Receiver<Arc<DiscoveryReport>>,
    ) {
        let (devices, devices_seen) = watch::channel(Arc::default());
        let (report, report_seen) = watch::channel(Arc::default());
        let task = Self {
            started: config.clock.now(),
            registry: Registry::new(config.eviction),
            instances,
            known: BTreeMap::new(),
            config,
            metrics,
            configurations,
            handlers,
            devices,
            report,
            configuration_set: Arc::default(),
            handler_set: Arc::default(),
            serving: BTreeMap::new(),
            served: BTreeMap::new(),
            all_known: false,
            report_at: None,
            generation: 0,
            answers: mpsc::channel(ANSWERS),
            tasks: JoinSet::new(),
            ids: HashMap::new(),
            counted: BTreeSet::new(),
        };
        (task, devices_seen, report_seen)
    }

    /// Runs until `shutdown`; then its sessions are dropped.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        // What an earlier run has found is known before anything is compared with it.
        let stored = loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                stored = self.instances.wait_for(|set| set.is_known()) => match stored {
                    Ok(stored) => break Arc::clone(&stored),
                    Err(_) => return Err(SourceEnded("Instances")),
                },
                // Nothing is served yet, but why may be what is wrong with the Configurations, too.
                changed = self.configurations.changed() => {
                    changed.map_err(|_| SourceEnded("Configurations"))?;
                    let problems = self.configurations.borrow_and_update().problems.clone();
                    let report = DiscoveryReport { problems, ..DiscoveryReport::default() };
                    self.report.send_replace(Arc::new(report));
                }
            }
        };
        self.known = known(&stored, &self.config.node, &self.config.clock);
        drop(stored);
        self.configurations.mark_changed();
        self.handlers.mark_changed();
        let result = loop {
            let deadline = self.deadline().map(|time| self.config.clock.instant(time));
            tokio::select! {
                () = shutdown.cancelled() => break Ok(()),
                changed = self.configurations.changed() => {
                    if changed.is_err() {
                        break Err(SourceEnded("Configurations"));
                    }
                    self.configuration_set = Arc::clone(&self.configurations.borrow_and_update());
                    self.sync_and_tick();
                }
                changed = self.handlers.changed() => {
                    if changed.is_err() {
                        break Err(SourceEnded("handlers"));
                    }
                    self.handler_set = Arc::clone(&self.handlers.borrow_and_update());
                    self.sync_and_tick();
                }
                Some(answer) = self.answers.1.recv() => {
                    self.answered(answer);
                    for _ in 1..ANSWERS {
                        let Ok(answer) = self.answers.1.try_recv() else { break };
                        self.answered(answer);
                    }
                }
                Some(ended) = self.tasks.join_next_with_id() => {
                    let (id, broken) = match ended {
                        Ok((id, ())) => (id, false),
                        Err(error) => (error.id(), error.is_panic()),
                    };
                    if let Some(id) = self.ids.remove(&id) && broken {
                        self.broken(&id);
                    }
                }
                () = until(deadline) => {
                    if self.tick(false) {
                        self.sync();
                    }
                }
                () = until(self.report_at) => {
                    self.report_at = None;
                    let report = self.report();
                    self.report.send_replace(Arc::new(report));
                    continue;
                }
            }
            self.publish();
            self.report_at
                .get_or_insert_with(|| Instant::now() + SPACING);
        };
        self.served.clear();
        self.tasks.shutdown().await;
        result
    }

    fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// There are other Configurations or handlers. Sessions of all there are come before what their devices are held against: until
    /// a new source has answered, what the others lack is not missing.
    fn sync_and_tick(&mut self) {
        self.sync();
        if self.tick(true) {
            self.sync();
        }
    }

    /// What time brought about: removals, returns, ends of grace; of `all` Configurations or of those that are due. Returns
    /// whether registry and sessions are to be brought in line.
    fn tick(&mut self, all: bool) -> bool {
        let now = self.now();
        let events = self.registry.tick(now);
        let mut look = !events.is_empty();
        for event in events {
            match event {
                Event::Removed(key) => {
                    tracing::warn!(
                        handler = key.name,
                        source = key.source,
                        "handler was Offline for too long; removed, its devices are withdrawn"
                    );
                    self.removed(&key);
                }
                Event::Returned(key) => {
                    tracing::info!(
                        handler = key.name,
                        source = key.source,
                        "handler is tried again"
                    );
                }
            }
        }
        let all_known = self.all_known(now);
        let all = all || look || all_known != self.all_known;
        self.all_known = all_known;
        for served in self.served.values_mut() {
            let waited = served
                .without_handler
                .map(|since| later(since, self.config.eviction));
            if self.handler_set.complete
                && waited.is_some_and(|then| then <= now)
                && !served.unseen.is_empty()
            {
                served.unseen.clear();
                served.stale = true;
            }
            if all || served.due.is_some_and(|due| due <= now) {
                look |= served.expire(all_known, now);
            }
        }
        look
    }

    /// What is kept by the names of handlers goes with them.
    fn forget_handlers(&mut self) {
        let now: BTreeSet<String> = self.registry.keys().map(|key| key.name.clone()).collect();
        for name in self.counted.difference(&now) {
            self.metrics.forget_handler(name);
        }
        self.counted = now;
    }

    fn removed(&mut self, key: &HandlerKey) {
        let last = !self.registry.serves(&key.name);
        for served in self.served.values_mut() {
            if served.handler() == key.name {
                served.sessions.remove(&key.source);
                served.stale = true;
                if last {
                    served.unseen.clear();
                }
            }
        }
    }

    /// Whether the agent knows the handler of every source. It waits for a source that never loaded as long as a handler may be
    /// Offline.
    fn all_known(&self, now: Timestamp) -> bool {
        let mut sources = self.handler_set.sources.values();
        self.handler_set.complete
            && (now >= later(self.started, self.config.eviction)
                || sources.all(|source| source.handler.is_some()))
    }

    fn deadline(&self) -> Option<Timestamp> {
        let eviction = self.config.eviction;
        let waiting = self
            .served
            .values()
            .filter(|served| !served.unseen.is_empty());
        let evictions = waiting
            .filter_map(|served| served.without_handler)
            .chain((!self.all_known).then_some(self.started))
            .map(|since| later(since, eviction))
            .filter(|_| self.handler_set.complete);
        let served = self.served.values();
        let served = served.filter_map(|served| served.due);
        served
            .chain(evictions)
            .chain(self.registry.deadline())
            .min()
    }

    /// Publishes the devices, if they differ.
    fn publish(&mut self) {
        let (all_known, now) = (self.all_known, self.now());
        let set = &self.configuration_set;
        let snapshot = DeviceSnapshot {
            read: set.complete && self.handler_set.complete,
            boot: self.config.clock.boot(),
            names: Arc::clone(&set.names),
            absent: if set.complete {
                let problems = set.problems.iter();
                let problems = problems.filter_map(|problem| problem.configuration.clone());
                Absent::Gone {
                    unknown: problems.chain(set.left_out.keys().cloned()).collect(),
                }
            } else {
                Absent::UNKNOWN
            },
            configurations: self
                .served
                .iter_mut()
                .map(|(key, served)| (key.clone(), served.publish(all_known, now)))
                .collect(),
        };
        self.devices.send_if_modified(|held| {
            let differs = **held != snapshot;
            if differs {
                *held = Arc::new(snapshot);
            }
            differs
        });
    }
}

/// The devices that Instances of this node stand for.
fn known(instances: &InstanceSet, node: &str, clock: &Clock) -> BTreeMap<ConfigurationKey, Unseen> {
    let mut known: BTreeMap<ConfigurationKey, BTreeMap<DeviceKey, Option<Timestamp>>> =
        BTreeMap::new();
    for instance in instances.instances.values() {
        let spec = &instance.spec;
        let key = ConfigurationKey::new(&instance.metadata.namespace, &spec.configuration_name);
        let (Ok(key), Some(id)) = (key, instance.device_id()) else {
            continue;
        };
        if spec.nodes.iter().any(|seen| seen == node) {
            let status = instance.status.nodes.get(node);
            let missing_since = status.and_then(|status| clock.missing_since(status));
            let device = DeviceKey {
                id: id.to_owned(),
                shared: spec.shared,
            };
            known.entry(key).or_default().insert(device, missing_since);
        }
    }
    known
        .into_iter()
        .map(|(key, devices)| (key, Unseen::new(devices)))
        .collect()
}

#[cfg(test)]
mod tests;
