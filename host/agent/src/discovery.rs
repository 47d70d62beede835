//! The discovery task: Configurations × handlers → sessions → devices. It owns the registry and everything known of
//! sessions and devices; others read what it publishes.
//!
//! Knows neither names of Instances nor where they are kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::device::DeviceKey;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfigurationSet, Handler, InstanceSet};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::clock::{Clock, later};
use crate::devices::Unseen;
use crate::loader::{HandlerSet, until};
use crate::metrics::Metrics;
use crate::registry::{Event, HandlerKey, Registry};

mod hear;
mod look;
mod published;
mod report;
mod served;
mod session;
mod trouble;

pub use published::{
    ConfigurationDevices, ConfigurationReport, DeviceSnapshot, DiscoveryReport, HandlerReport,
};

use served::Served;
use session::{Answer, SessionId};
use trouble::Trouble;

/// Answers wait here while the task is busy with another one.
const ANSWERS: usize = 64;

/// What the task needs to know.
#[derive(Debug, Clone)]
pub struct DiscoveryConfig {
    /// The node's name.
    pub node: String,
    /// A handler that stays Offline so long is removed.
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
    configuration_set: Arc<ConfigurationSet>,
    handler_set: Arc<HandlerSet>,
    registry: Registry,
    serving: BTreeMap<HandlerKey, Arc<dyn Handler>>,
    served: BTreeMap<ConfigurationKey, Served>,
    /// Devices the store knew at the start, until their Configuration is first seen.
    known: BTreeMap<ConfigurationKey, Unseen>,
    generation: u64,
    answers: (mpsc::Sender<Answer>, mpsc::Receiver<Answer>),
    tasks: JoinSet<()>,
    ids: HashMap<Id, SessionId>,
    trouble: Trouble,
}

/// Why the task ended although nobody asked it to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A port ended.
    #[error("the source of {0} has ended")]
    SourceEnded(&'static str),
}

impl DiscoveryTask {
    /// The task and what it publishes. `instances` are those of an earlier run: their devices stay until an answer
    /// says otherwise.
    pub fn new(
        config: DiscoveryConfig,
        metrics: Arc<Metrics>,
        configurations: watch::Receiver<Arc<ConfigurationSet>>,
        handlers: watch::Receiver<Arc<HandlerSet>>,
        instances: &InstanceSet,
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
            known: known(instances, &config.node),
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
            generation: 0,
            answers: mpsc::channel(ANSWERS),
            tasks: JoinSet::new(),
            ids: HashMap::new(),
            trouble: Trouble::default(),
        };
        (task, devices_seen, report_seen)
    }

    /// Runs until `shutdown`; then its sessions are dropped.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        self.configurations.mark_changed();
        self.handlers.mark_changed();
        let result = loop {
            let deadline = self.deadline().map(|time| self.config.clock.instant(time));
            tokio::select! {
                () = shutdown.cancelled() => break Ok(()),
                changed = self.configurations.changed() => {
                    if changed.is_err() {
                        break Err(Error::SourceEnded("Configurations"));
                    }
                    self.configuration_set = Arc::clone(&self.configurations.borrow_and_update());
                    self.tick();
                    self.look();
                }
                changed = self.handlers.changed() => {
                    if changed.is_err() {
                        break Err(Error::SourceEnded("handlers"));
                    }
                    self.handler_set = Arc::clone(&self.handlers.borrow_and_update());
                    self.tick();
                    self.look();
                }
                Some(answer) = self.answers.1.recv() => self.answered(answer),
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
                    self.tick();
                    self.look();
                }
            }
            self.publish();
        };
        self.served.clear();
        self.tasks.shutdown().await;
        result
    }

    fn now(&self) -> Timestamp {
        self.config.clock.now()
    }

    /// What time brought about: removals, returns, ends of grace.
    fn tick(&mut self) {
        let now = self.now();
        for event in self.registry.tick(now) {
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
        for served in self.served.values_mut() {
            let waited = served
                .without_handler
                .map(|since| later(since, self.config.eviction));
            if self.handler_set.complete && waited.is_some_and(|then| then <= now) {
                served.unseen.clear();
                served.stale = true;
            }
            served.expire(all_known, now);
        }
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

    /// Whether it is known of every source which handler it is. One that never loaded counts for so long as a handler may be
    /// Offline.
    fn all_known(&self, now: Timestamp) -> bool {
        let mut sources = self.handler_set.sources.values();
        self.handler_set.complete
            && (now >= later(self.started, self.config.eviction)
                || sources.all(|source| source.handler.is_some()))
    }

    fn deadline(&self) -> Option<Timestamp> {
        let now = self.now();
        let eviction = self.config.eviction;
        let waiting = self
            .served
            .values()
            .filter(|served| !served.unseen.is_empty());
        let evictions = waiting
            .filter_map(|served| served.without_handler)
            .chain([self.started])
            .map(|since| later(since, eviction))
            .filter(|then| *then > now);
        let all_known = self.all_known(now);
        let served = self.served.values();
        let served = served.filter_map(|served| served.deadline(all_known));
        served
            .chain(evictions)
            .chain(self.registry.deadline())
            .min()
    }

    fn publish(&mut self) {
        let now = self.now();
        let all_known = self.all_known(now);
        let set = &self.configuration_set;
        let snapshot = DeviceSnapshot {
            read: set.complete && self.handler_set.complete,
            complete: set.complete,
            spared: set
                .problems
                .iter()
                .filter_map(|problem| problem.configuration.clone())
                .collect(),
            configurations: self
                .served
                .iter_mut()
                .map(|(key, served)| (key.clone(), served.publish(all_known)))
                .collect(),
        };
        self.devices.send_if_modified(|held| {
            let differs = !held.is(&snapshot);
            if differs {
                *held = Arc::new(snapshot);
            }
            differs
        });
        self.report.send_replace(Arc::new(self.report()));
    }
}

/// The devices that Instances of this node stand for.
fn known(instances: &InstanceSet, node: &str) -> BTreeMap<ConfigurationKey, Unseen> {
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
            let missing_since = status
                .and_then(|status| status.missing_since.as_ref())
                .and_then(|text| text.parse().ok());
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
