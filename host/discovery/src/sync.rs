//! Synchronizes registry and sessions with the current Configurations and handlers.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfiguredDiscovery, Handler};
use leafhost_core::session::SessionSpec;
use tokio::sync::watch;

use super::DiscoveryTask;
use super::served::ServedConfiguration;
use super::session::{self, SessionCommand, SessionId};
use crate::devices::{Bucket, SourceRank};
use crate::loader::HandlerSet;
use crate::registry::HandlerKey;

impl DiscoveryTask {
    /// Synchronizes registry and sessions with the current Configurations and handlers.
    pub(super) fn sync(&mut self) {
        let now = self.now();
        let serving: BTreeMap<HandlerKey, Arc<dyn Handler>> = self
            .handler_set
            .sources
            .iter()
            .filter_map(|(source, loaded)| {
                let handler = loaded.handler.as_ref()?;
                let key = HandlerKey::new(&handler.facts().description.name, source);
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
                set.left_out.contains_key(key)
                    || problems.any(|problem| problem.configuration.as_ref() == Some(key))
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
                let spared = spared(&key);
                self.forget(key, spared, now);
            }
        }
        for (key, configured) in &set.accepted {
            self.serve(key, configured, now);
        }
        self.forget_handlers();
    }

    /// Forgets a Configuration that is no longer served. If it is `spared`, it still exists but cannot be used now, and its devices are
    /// kept.
    fn forget(&mut self, key: ConfigurationKey, spared: bool, now: Timestamp) {
        if let Some(served) = self.served.remove(&key) {
            for source in served.sessions.keys() {
                let handler = HandlerKey::new(served.handler(), source);
                self.registry.close(&handler, &key, now);
            }
            if !self.served.keys().any(|other| other.name() == key.name()) {
                self.metrics.forget_configuration(key.name());
            }
            if spared {
                self.known.insert(key, served.into_unseen());
            } else {
                served.log_deletion(now);
            }
        }
    }

    /// Synchronizes the sessions of one Configuration.
    fn serve(
        &mut self,
        key: &ConfigurationKey,
        configured: &Arc<ConfiguredDiscovery>,
        now: Timestamp,
    ) {
        let served = self.served.entry(key.clone()).or_insert_with(|| {
            let unseen = self.known.remove(key).unwrap_or_default();
            ServedConfiguration::new(Arc::clone(configured), unseen)
        });
        if served.handler() != configured.configuration.handler {
            let name = served.handler().to_owned();
            for (source, session) in std::mem::take(&mut served.sessions) {
                served.unseen.adopt(&session.devices);
                self.registry
                    .close(&HandlerKey::new(&name, &source), key, now);
            }
        }
        served.configured = Arc::clone(configured);
        served.stale = true;
        let name = served.handler().to_owned();
        let trusted = self.handler_set.trusted.get(&name);
        served.first = trusted.map(|trusted| trusted.source.clone());
        for (source, session) in &mut served.sessions {
            let handler = HandlerKey::new(&name, source);
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
            session.rank = rank(&self.handler_set, handler, component);
            // A secondary source is not trusted with the properties that the first source got.
            let properties = if session.rank.is_secondary {
                &[]
            } else {
                properties.as_slice()
            };
            let details = &configured.configuration.details;
            if session.is_on(component, details, properties)
                || session.restart.is_some_and(|then| then > now)
            {
                continue;
            }
            self.generation += 1;
            let id = SessionId {
                configuration: key.clone(),
                handler: handler.clone(),
            };
            let order = Arc::new(SessionCommand {
                generation: self.generation,
                handler: Arc::clone(component),
                spec: SessionSpec {
                    node: self.config.node.clone(),
                    configuration: key.clone(),
                    details: details.clone(),
                    properties: properties.to_vec(),
                    opening: session.opening(component),
                },
            });
            session.reopened(component);
            // Resets the limit of changes: the devices of a new session may be stable.
            served.bucket = Bucket::default();
            let sent = |orders: &watch::Sender<_>| orders.send(Arc::clone(&order)).is_ok();
            if !session.running.as_ref().is_some_and(sent) {
                let (orders, receiver) = watch::channel(order);
                let answers = self.answers.0.clone();
                let running = session::run(id.clone(), receiver, answers);
                self.ids.insert(self.tasks.spawn(running).id(), id);
                session.running = Some(orders);
            }
            self.registry.open(handler, key, now);
        }
    }
}

/// Returns the rank of a source among the sources of its handler.
pub(super) fn rank(set: &HandlerSet, key: &HandlerKey, handler: &Arc<dyn Handler>) -> SourceRank {
    let loaded = set.sources.get(&key.source);
    let registration = loaded.and_then(|loaded| loaded.registration.as_ref());
    let trusted = set.trusted.get(&key.name);
    let is_first = trusted.is_none_or(|first| first.is_there && first.source == key.source);
    SourceRank {
        is_secondary: !handler.facts().is_named && !is_first,
        number: registration.map_or(u64::MAX, |registration| registration.number),
    }
}
