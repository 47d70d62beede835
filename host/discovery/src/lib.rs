//! The discovery task: Configurations × handlers → sessions → devices. It owns the registry and all state of sessions and devices; other
//! tasks read what it publishes.
//!
//! It knows neither the names of Instances nor where they are stored.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::clock::{Clock, later};
use leafhost_core::device_view::DeviceSnapshot;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfigurationSet, Handler, InstanceSet};
use leafhost_core::presence::Absent;
use leafhost_core::wait::{SourceEnded, publish, until};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::devices::UnconfirmedDevices;
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

use served::ServedConfiguration;
use session::{Answer, SessionId};

/// Minimum time between two reports: each covers all Configurations.
const SPACING: Duration = Duration::from_millis(200);
/// Maximum number of answers that are applied before the result is published, and capacity of their channel.
const ANSWERS: usize = 64;

/// Settings of the discovery task.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// Name of the node.
    pub node: String,
    /// Time for which a handler may be Offline before it is removed.
    pub eviction: Duration,
    /// Clock of the task.
    pub clock: Clock,
}

/// Task that runs discovery.
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
    served: BTreeMap<ConfigurationKey, ServedConfiguration>,
    /// Devices that the store knew at the start, until their Configuration is first seen.
    known: BTreeMap<ConfigurationKey, UnconfirmedDevices>,
    /// True if the handler of every source was known at the last tick.
    all_known: bool,
    /// Time of the next report, if anything has changed since the last one.
    report_at: Option<Instant>,
    generation: u64,
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    tasks: JoinSet<()>,
    ids: HashMap<Id, SessionId>,
    /// Names of handlers that have metrics.
    counted: BTreeSet<String>,
}

impl DiscoveryTask {
    /// Creates the task; returns it with the receivers of devices and reports. Devices of the first `instances` stay until an answer
    /// contradicts them.
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

    /// Runs until `shutdown`, then drops its sessions.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), SourceEnded> {
        // The devices of an earlier run must be known before answers are compared with them.
        let stored = loop {
            tokio::select! {
                () = shutdown.cancelled() => return Ok(()),
                stored = self.instances.wait_for(|set| set.is_known()) => match stored {
                    Ok(stored) => break Arc::clone(&stored),
                    Err(_) => return Err(SourceEnded("Instances")),
                },
                // Nothing is served yet; problems of the Configurations may be the reason.
                changed = self.configurations.changed() => {
                    changed.map_err(|_| SourceEnded("Configurations"))?;
                    let set = Arc::clone(&self.configurations.borrow_and_update());
                    let report = DiscoveryReport { set, ..DiscoveryReport::default() };
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

    /// Applies a change of Configurations or handlers. Sessions are opened before devices are compared: until a new source has answered,
    /// devices that the other sources lack are not missing.
    fn sync_and_tick(&mut self) {
        self.sync();
        if self.tick(true) {
            self.sync();
        }
    }

    /// Applies the passage of time: removed and returned handlers, and expired grace periods, for `all` Configurations or only those that
    /// are due. Returns true if registry and sessions have to be synchronized.
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
                        "handler was Offline for too long; it is removed, and its devices are withdrawn"
                    );
                    self.removed(&key);
                }
                Event::Returned(key) => {
                    tracing::info!(
                        handler = key.name,
                        source = key.source,
                        "trying the removed handler again"
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
                served.unseen = UnconfirmedDevices::default();
                served.stale = true;
            }
            if all || served.due.is_some_and(|due| due <= now) {
                look |= served.expire(all_known, now);
            }
        }
        look
    }

    /// Forgets the metrics of handlers that are gone.
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
                    served.unseen = UnconfirmedDevices::default();
                }
            }
        }
    }

    /// Returns true once the sources have been read and either the handler of each is known or the agent has waited long enough for sources
    /// that never loaded.
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

    /// Publishes the devices if they have changed.
    fn publish(&mut self) {
        let (all_known, now) = (self.all_known, self.now());
        let set = &self.configuration_set;
        let snapshot = DeviceSnapshot {
            read: set.complete && self.handler_set.complete,
            boot: self.config.clock.boot,
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
        publish(&self.devices, Arc::new(snapshot));
    }
}

/// Returns the devices of this node's Instances.
fn known(
    instances: &InstanceSet,
    node: &str,
    clock: &Clock,
) -> BTreeMap<ConfigurationKey, UnconfirmedDevices> {
    let mut known: BTreeMap<ConfigurationKey, UnconfirmedDevices> = BTreeMap::new();
    for instance in instances.instances.values() {
        if let (Some(key), Some(device)) = (instance.configuration(), instance.device_key())
            && instance.is_seen_by(node)
        {
            let status = instance.status.nodes.get(node);
            let missing_since = status.and_then(|status| clock.missing_since(status));
            known.entry(key).or_default().insert(device, missing_since);
        }
    }
    known
}

#[cfg(test)]
mod tests;
