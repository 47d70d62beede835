//! The discovery task: Configurations × handlers → sessions → devices. It owns the registry and everything known of
//! sessions and devices; others read what it publishes.
//!
//! Knows neither names of Instances nor where they are kept.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use leafhost_core::device::DeviceKey;
use leafhost_core::fault::{Fault, FaultReason};
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfigurationSet, ConfiguredDiscovery, Handler, InstanceSet};
use leafhost_core::session::{Outcome, Property, SessionSpec};
use tokio::sync::{mpsc, watch};
use tokio::task::{Id, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::backoff;
use crate::clock::{Clock, later};
use crate::devices::Unseen;
use crate::loader::{HandlerSet, until};
use crate::metrics::{Call, Metrics};
use crate::registry::{Event, HandlerKey, Registry};

mod published;
mod report;
mod served;
mod session;
mod trouble;

pub use published::{
    ConfigurationDevices, ConfigurationReport, DeviceSnapshot, DiscoveryReport, HandlerReport,
};

use served::{Running, Served, SourceSession};
use session::{Answer, Order, Said, SessionId};
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
                    self.look();
                    self.tick();
                }
                changed = self.handlers.changed() => {
                    if changed.is_err() {
                        break Err(Error::SourceEnded("handlers"));
                    }
                    self.handler_set = Arc::clone(&self.handlers.borrow_and_update());
                    self.look();
                    self.tick();
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

    /// Brings registry and sessions in line with what there is now.
    fn look(&mut self) {
        let now = self.now();
        let serving: BTreeMap<HandlerKey, Arc<dyn Handler>> = self
            .handler_set
            .sources
            .iter()
            .filter_map(|(source, loaded)| {
                let handler = loaded.handler.as_ref()?;
                let key = HandlerKey {
                    name: handler.description().name.clone(),
                    source: source.clone(),
                };
                Some((key, Arc::clone(handler)))
            })
            .collect();
        for key in self
            .serving
            .keys()
            .filter(|key| !serving.contains_key(*key))
        {
            self.registry.source_gone(key, now);
        }
        for (key, handler) in &serving {
            let held = self.serving.get(key);
            if !held.is_some_and(|held| Arc::ptr_eq(held, handler)) {
                self.registry.register(key, now);
            }
        }
        self.serving = serving;
        let set = Arc::clone(&self.configuration_set);
        if set.complete {
            let spared = |key: &ConfigurationKey| {
                let mut problems = set.problems.iter();
                problems.any(|problem| problem.configuration.as_ref() == Some(key))
            };
            self.known
                .retain(|key, _| set.accepted.contains_key(key) || spared(key));
            let gone: Vec<ConfigurationKey> = self
                .served
                .keys()
                .filter(|key| !set.accepted.contains_key(*key))
                .cloned()
                .collect();
            for key in gone {
                self.forget(&key, now);
            }
        }
        for (key, configured) in &set.accepted {
            self.serve(key, configured, now);
        }
    }

    /// The Configuration was deleted.
    fn forget(&mut self, key: &ConfigurationKey, now: Timestamp) {
        if let Some(served) = self.served.remove(key) {
            for source in served.sessions.keys() {
                let handler = HandlerKey {
                    name: served.handler().to_owned(),
                    source: source.clone(),
                };
                self.registry.close(&handler, key, now);
            }
            if !self.served.keys().any(|other| other.name() == key.name()) {
                self.metrics.forget_configuration(key.name());
            }
        }
    }

    /// Brings one Configuration's sessions in line.
    fn serve(
        &mut self,
        key: &ConfigurationKey,
        configured: &Arc<ConfiguredDiscovery>,
        now: Timestamp,
    ) {
        let served = match self.served.entry(key.clone()) {
            std::collections::btree_map::Entry::Occupied(held) => held.into_mut(),
            std::collections::btree_map::Entry::Vacant(free) => {
                let unseen = self.known.remove(key).unwrap_or_default();
                free.insert(Served::new(Arc::clone(configured), unseen))
            }
        };
        if served.handler() != configured.configuration.handler {
            let name = served.handler().to_owned();
            for (source, session) in std::mem::take(&mut served.sessions) {
                served.unseen.adopt(&session.devices);
                let name = name.clone();
                self.registry.close(&HandlerKey { name, source }, key, now);
            }
        }
        served.configured = Arc::clone(configured);
        let name = served.handler().to_owned();
        for (source, session) in &mut served.sessions {
            let handler = HandlerKey {
                name: name.clone(),
                source: source.clone(),
            };
            if !self.serving.contains_key(&handler) || configured.properties.is_err() {
                session.running = None;
                session.restart = None;
            }
        }
        if self.registry.serves(&name) {
            served.without_handler = None;
        } else {
            served.without_handler.get_or_insert(now);
        }
        for (handler, component) in &self.serving {
            if handler.name != name || !self.registry.is_registered(handler) {
                continue;
            }
            let Ok(properties) = &configured.properties else {
                self.registry.close(handler, key, now);
                continue;
            };
            let session = served.sessions.entry(handler.source.clone()).or_default();
            let details = &configured.configuration.details;
            let on = |running: &Running| running.is_on(component, details, properties);
            if session.running.as_ref().is_some_and(on)
                || session.restart.is_some_and(|then| then > now)
            {
                continue;
            }
            self.generation += 1;
            let id = SessionId {
                configuration: key.clone(),
                handler: handler.clone(),
            };
            let order = order(
                self.generation,
                &self.config.node,
                &id,
                component,
                session,
                (details, properties),
            );
            session.reopened(component);
            let running = match session.running.take() {
                Some(running) if running.orders.send(Arc::clone(&order)).is_ok() => Running {
                    generation: self.generation,
                    ..running
                },
                _ => {
                    let (orders, receiver) = watch::channel(order);
                    let answers = self.answers.0.clone();
                    let task = self
                        .tasks
                        .spawn(session::run(id.clone(), receiver, answers));
                    self.ids.insert(task.id(), id);
                    Running {
                        generation: self.generation,
                        orders,
                    }
                }
            };
            session.running = Some(running);
            self.registry.open(handler, key, now);
        }
    }

    /// A session has said something.
    fn answered(&mut self, answer: Answer) {
        let Answer {
            id,
            generation,
            said,
        } = answer;
        let now = self.now();
        let Some(served) = self.served.get_mut(&id.configuration) else {
            return;
        };
        let grace = served.grace();
        let source = &id.handler.source;
        let session = match served.sessions.get_mut(source) {
            Some(session) if session.generation() == Some(generation) => session,
            _ => return,
        };
        let was_fine = session.fault.is_none();
        let answered = match said {
            Said::Report(report) => {
                let failed = match &report.outcome {
                    Outcome::Discovered(_) => None,
                    Outcome::Faulted(fault) => Some(Some(fault)),
                    Outcome::InvalidDetails(_) | Outcome::Unavailable(_) => Some(None),
                };
                self.metrics.called(Call {
                    handler: &id.handler.name,
                    configuration: id.configuration.name(),
                    seconds: report.call.wall.as_secs_f64(),
                    failed,
                    denied: report.call.denied.len(),
                });
                session.take(source, report, grace, now)
            }
            Said::Refused(problems) => {
                session.refused(source, problems, now);
                true
            }
            Said::NotValidated { fault, took } => {
                self.metrics.called(Call {
                    handler: &id.handler.name,
                    configuration: id.configuration.name(),
                    seconds: took.as_secs_f64(),
                    failed: Some(Some(&fault)),
                    denied: 0,
                });
                session.failed(source, fault.reason.label(), fault.to_string(), now);
                false
            }
        };
        tell(&mut self.trouble, &id, session, was_fine);
        if answered {
            self.registry.answered(&id.handler, &id.configuration, now);
        } else {
            self.registry.failed(&id.handler, &id.configuration, now);
        }
        let all_known = self.all_known(now);
        if let Some(served) = self.served.get_mut(&id.configuration) {
            served.expire(all_known, now);
        }
    }

    /// A session's task panicked: a bug of ours, for which no other session pays.
    fn broken(&mut self, id: &SessionId) {
        let now = self.now();
        let fault = Fault::new(
            FaultReason::Host,
            "the session broke down, which is a bug; the log has its last words",
        );
        tracing::error!(configuration = %id.configuration, handler = id.handler.name, source = id.handler.source,
            "a session broke down");
        let served = self.served.get_mut(&id.configuration);
        if let Some(session) = served.and_then(|served| served.sessions.get_mut(&id.handler.source))
        {
            session.running = None;
            session.failed(
                &id.handler.source,
                fault.reason.label(),
                fault.to_string(),
                now,
            );
            let failures = u32::try_from(session.view.failures).unwrap_or(u32::MAX);
            session.restart = Some(later(now, backoff::wait(failures)));
            self.registry.failed(&id.handler, &id.configuration, now);
        }
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
            }
            served.expire(all_known, now);
        }
    }

    fn removed(&mut self, key: &HandlerKey) {
        let last = !self.registry.serves(&key.name);
        for served in self.served.values_mut() {
            if served.handler() == key.name {
                served.sessions.remove(&key.source);
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
            let differs = **held != snapshot;
            if differs {
                *held = Arc::new(snapshot);
            }
            differs
        });
        let report = self.report();
        self.report.send_if_modified(|held| {
            let differs = **held != report;
            if differs {
                *held = Arc::new(report);
            }
            differs
        });
    }
}

impl SourceSession {
    fn generation(&self) -> Option<u64> {
        self.running.as_ref().map(|running| running.generation)
    }
}

fn order(
    generation: u64,
    node: &str,
    id: &SessionId,
    handler: &Arc<dyn Handler>,
    session: &SourceSession,
    (details, properties): (&str, &[Property]),
) -> Arc<Order> {
    Arc::new(Order {
        generation,
        handler: Arc::clone(handler),
        spec: SessionSpec {
            node: node.to_owned(),
            configuration: id.configuration.clone(),
            details: details.to_owned(),
            properties: properties.to_vec(),
            opening: session.opening(handler),
        },
    })
}

/// Tells the log of the first failure in a row and of ever fewer of those that follow, and of the end of them.
fn tell(trouble: &mut Trouble, id: &SessionId, session: &SourceSession, was_fine: bool) {
    let view = &session.view;
    let (configuration, handler, source) =
        (&id.configuration, &id.handler.name, &id.handler.source);
    if view.failures == 0 {
        if !was_fine && trouble.is_told(&id.handler) {
            tracing::info!(%configuration, handler, source, "discovery works again");
        }
    } else if backoff::is_told(view.failures) && trouble.is_told(&id.handler) {
        let invalid: Vec<String> = session
            .invalid
            .iter()
            .map(|problem| format!("{}: {}", problem.path, problem.message))
            .collect();
        let error = view.error.clone().unwrap_or_else(|| invalid.join("; "));
        tracing::warn!(%configuration, handler, source, result = view.result, failures = view.failures, error,
            "no devices from the handler");
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
