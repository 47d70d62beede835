//! Builds the report on discovery for the status document.

use std::collections::BTreeSet;
use std::sync::Arc;

use leafhost_core::configuration::FieldProblem;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::problem::Problem;

use super::DiscoveryTask;
use super::published::{ConfigurationReport, DiscoveryReport, HandlerReport};
use super::served::ServedConfiguration;
use super::sync::rank;
use crate::registry::{HandlerKey, Phase};

impl DiscoveryTask {
    pub(super) fn report(&self) -> DiscoveryReport {
        DiscoveryReport {
            handlers: self
                .registry
                .keys()
                .filter_map(|key| self.handler_report(key))
                .collect(),
            configurations: self
                .served
                .iter()
                .map(|(key, served)| (key.clone(), self.configuration_report(served)))
                .collect(),
            set: Arc::clone(&self.configuration_set),
        }
    }

    fn handler_report(&self, key: &HandlerKey) -> Option<HandlerReport> {
        let (phase, since) = self.registry.phase(key)?;
        let sessions = || {
            let served = self
                .served
                .values()
                .filter(|served| served.handler() == key.name);
            served.filter_map(|served| served.sessions.get(&key.source))
        };
        Some(HandlerReport {
            name: key.name.clone(),
            source: key.source.clone(),
            status: phase.label(),
            since,
            devices: sessions()
                .map(|session| session.devices.tracked().len())
                .sum(),
            last_error: sessions().find_map(|session| session.fault.clone()),
        })
    }

    fn configuration_report(&self, served: &ServedConfiguration) -> ConfigurationReport {
        let sessions = served.sessions.values();
        let invalid: BTreeSet<&FieldProblem> =
            sessions.flat_map(|session| &session.invalid).collect();
        let key = &served.configured.configuration.key;
        let mut problems = Vec::new();
        if let Err(field) = &served.configured.properties
            && !self.is_reported(key, &field.path)
        {
            problems.push(Problem::PropertyUnavailable {
                configuration: key.clone(),
                field: field.clone(),
            });
        }
        problems.extend(self.handler_problem(key, served.handler()));
        problems.extend(self.source_problems(key, served));
        for (source, session) in &served.sessions {
            problems.extend(session.devices.problem(key, source));
        }
        problems.extend(served.bucket.problem(key));
        ConfigurationReport {
            handler: served.handler().to_owned(),
            problems,
            invalid_details: invalid.into_iter().cloned().collect(),
            sessions: served
                .sessions
                .values()
                .map(|session| Arc::clone(&session.view))
                .filter(|view| !view.source.is_empty())
                .collect(),
        }
    }

    /// Returns true if the source of Configurations already reports a problem of the field at `path`; that report also names the file.
    fn is_reported(&self, key: &ConfigurationKey, path: &str) -> bool {
        let mut problems = self.configuration_set.problems.iter();
        problems.any(|problem| problem.configuration.as_ref() == Some(key) && problem.path == path)
    }

    fn handler_problem(&self, key: &ConfigurationKey, name: &str) -> Option<Problem> {
        if self.registry.serves(name) {
            return None;
        }
        let (configuration, handler) = (key.clone(), name.to_owned());
        let mut entries = self.registry.keys().filter(|key| key.name == name);
        let retry = entries.find_map(|key| match self.registry.phase(key)? {
            (Phase::Removed(retry), _) => Some(retry),
            _ => None,
        });
        if let Some(retry) = retry {
            return Some(Problem::HandlerRemoved {
                configuration,
                handler,
                retry,
            });
        }
        if !self.handler_set.complete {
            return Some(Problem::HandlerLoading {
                configuration,
                handler,
            });
        }
        let mut known: Vec<String> = self.registry.keys().map(|key| key.name.clone()).collect();
        known.dedup();
        let refused = self.handler_set.sources.iter();
        let refused = refused.filter(|(_, loaded)| loaded.handler.is_none());
        Some(Problem::HandlerNotFound {
            configuration,
            handler,
            known,
            refused: refused.map(|(source, _)| source.clone()).collect(),
        })
    }

    fn source_problems(
        &self,
        key: &ConfigurationKey,
        served: &ServedConfiguration,
    ) -> Vec<Problem> {
        let handler = served.handler();
        let serving = self.serving.iter().filter(|(key, _)| key.name == handler);
        let (newcomers, trusted): (Vec<_>, Vec<_>) = serving
            .map(|(key, component)| (key, rank(&self.handler_set, key, component)))
            .partition(|(_, rank)| rank.is_secondary);
        let mut problems = Vec::new();
        if trusted.len() > 1 {
            problems.push(Problem::HandlerAmbiguous {
                configuration: key.clone(),
                handler: handler.to_owned(),
                sources: trusted.iter().map(|(key, _)| key.source.clone()).collect(),
            });
        }
        for (newcomer, _) in newcomers {
            let (configuration, handler) = (key.clone(), handler.to_owned());
            let source_name = newcomer.source.clone();
            let first = served.first.clone().unwrap_or_default();
            let trusted = self.handler_set.trusted.get(&handler);
            problems.push(if trusted.is_some_and(|trusted| !trusted.is_there) {
                Problem::SourceNotOwner {
                    configuration,
                    handler,
                    source_name,
                    owner: first,
                }
            } else {
                Problem::SourceNotTrusted {
                    configuration,
                    handler,
                    source_name,
                    first,
                }
            });
        }
        problems.extend_from_slice(&served.duplicates);
        problems
    }
}
