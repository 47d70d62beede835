//! The course of discovery in words, for the status document.

use std::sync::Arc;

use leafhost_core::configuration::FieldProblem;
use leafhost_core::names::ConfigurationKey;

use super::DiscoveryTask;
use super::published::{ConfigurationReport, DiscoveryReport, HandlerReport};
use super::served::Served;
use super::sync::standing;
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
            problems: self.configuration_set.problems.clone(),
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
            status: match phase {
                Phase::Registered(status) => status.label(),
                Phase::Removed { .. } => "Removed",
            },
            since,
            devices: sessions()
                .map(|session| session.devices.tracked().len())
                .sum(),
            last_error: sessions().find_map(|session| session.fault.clone()),
        })
    }

    fn configuration_report(&self, served: &Served) -> ConfigurationReport {
        let mut invalid: Vec<FieldProblem> = served
            .sessions
            .values()
            .flat_map(|session| session.invalid.iter().cloned())
            .collect();
        invalid.sort();
        invalid.dedup();
        let mut problems = Vec::new();
        if let Err(FieldProblem { path, message }) = &served.configured.properties
            && !self.is_told(&served.configured.configuration.key, path)
        {
            problems.push(format!("{path}: {message}; the handler is not called"));
        }
        problems.extend(self.handler_problem(served.handler()));
        problems.extend(self.source_problems(served));
        let sessions = served.sessions.values();
        problems.extend(sessions.filter_map(|session| session.not_used.clone()));
        problems.extend(served.bucket.problem());
        ConfigurationReport {
            handler: served.handler().to_owned(),
            problems,
            invalid_details: invalid,
            sessions: served
                .sessions
                .values()
                .map(|session| Arc::clone(&session.view))
                .filter(|view| !view.source.is_empty())
                .collect(),
        }
    }

    /// Whether the source of Configurations says what is wrong with that field, and in which file.
    fn is_told(&self, key: &ConfigurationKey, path: &str) -> bool {
        let mut told = self.configuration_set.problems.iter();
        told.any(|problem| problem.configuration.as_ref() == Some(key) && problem.path == path)
    }

    fn handler_problem(&self, name: &str) -> Option<String> {
        let entries: Vec<&HandlerKey> = self
            .registry
            .keys()
            .filter(|key| key.name == name)
            .collect();
        if let Some(removed) = entries
            .iter()
            .find_map(|key| match self.registry.phase(key) {
                Some((Phase::Removed { retry }, _)) => Some(retry),
                _ => None,
            })
        {
            let registered = entries.iter().any(|key| self.registry.is_registered(key));
            return (!registered).then(|| {
                format!(
                    "handler {name:?} failed for too long and was removed; it is tried again at {removed}, or at once when its file is replaced"
                )
            });
        }
        if !entries.is_empty() {
            return None;
        }
        if !self.handler_set.complete {
            return Some(format!("handler {name:?} is not loaded yet"));
        }
        let mut names: Vec<&str> = self.registry.keys().map(|key| key.name.as_str()).collect();
        names.dedup();
        let refused: Vec<&str> = self
            .handler_set
            .sources
            .iter()
            .filter(|(_, loaded)| loaded.handler.is_none())
            .map(|(source, _)| source.as_str())
            .collect();
        let mut remedy = if names.is_empty() {
            "there is none at all; add its .wasm file to the handlers".to_owned()
        } else {
            format!(
                "there are {}; correct the name or add the handler's .wasm file",
                names.join(", ")
            )
        };
        if !refused.is_empty() {
            remedy = format!("{remedy} ({} did not load)", refused.join(", "));
        }
        Some(format!(
            "spec.discoveryHandler.name: no handler is named {name:?}; {remedy}"
        ))
    }

    fn source_problems(&self, served: &Served) -> Vec<String> {
        let handler = served.handler();
        let serving = self.serving.iter().filter(|(key, _)| key.name == handler);
        let (newcomers, trusted): (Vec<_>, Vec<_>) = serving
            .map(|(key, component)| (key, standing(&self.handler_set, key, component)))
            .partition(|(_, standing)| standing.newcomer);
        let mut problems = Vec::new();
        if trusted.len() > 1 {
            let sources: Vec<&str> = trusted.iter().map(|(key, _)| key.source.as_str()).collect();
            problems.push(format!(
                "handler {handler:?} comes from {}: each of them gets this Configuration's properties, credentials included; remove what is not wanted",
                sources.join(" and "),
            ));
        }
        for (key, _) in newcomers {
            let (source, first) = (&key.source, served.first.as_deref().unwrap_or_default());
            problems.push(format!(
                "handler {handler:?} comes from {source}, too, which was accepted after {first}: it gets none of this Configuration's properties, and adds only devices that {first} does not have, once that has answered; remove it, or write `name: {handler}` into its grants file if it is to be trusted as {first} is",
            ));
        }
        for lost in &served.lost {
            let (loser, winner, example) = (&lost.loser, &lost.winner, &lost.example);
            problems.push(match lost.devices {
                1 => format!("device {example:?} of {loser} is not used, because {winner} has it, too"),
                devices => format!(
                    "{devices} devices of {loser} (such as {example:?}) are not used, because {winner} has them, too"
                ),
            });
        }
        problems
    }
}
