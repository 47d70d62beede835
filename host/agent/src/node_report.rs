//! Builds the report of this node on its handlers from the published state.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use leafhost_core::device_id::resource;
use leafhost_core::fair::round_robin;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::node_report::{
    HANDLER_REFUSED, HandlerPhase, MAX_REPORTS, NodeReport, ReportedConfiguration, ReportedHandler,
    ReportedProblem, ReportedSource,
};
use leafhost_core::ports::SourceProblem;
use leafhost_core::problem::{Problem, Reason, Subject};
use leafhost_core::wait;
use leafhost_discovery::loader::LoadedSource;
use leafhost_discovery::{ConfigurationReport, HandlerReport};
use tokio::sync::watch;
use tokio::time::timeout;

use crate::document::AgentState;

/// Time within which changes are reported together.
const SPACING: Duration = Duration::from_secs(1);
/// Time limit for the first calls, of which one may take 30 seconds.
const FIRST_CALLS: Duration = Duration::from_secs(40);

/// Publishes the report after each change. There is none until every handler was loaded and called once: an agent that restarts without a
/// change has nothing to report. Runs until it is dropped.
pub(crate) async fn publish(mut board: AgentState, reports: watch::Sender<Arc<NodeReport>>) {
    while !board.is_loaded() {
        board.changed().await;
    }
    let called = async {
        while !board.is_called() {
            board.changed().await;
        }
    };
    // Handlers without a call by then are reported as they are.
    let _ = timeout(FIRST_CALLS, called).await;
    loop {
        let report = board.node_report();
        wait::publish(&reports, Arc::new(report));
        board.changed().await;
        tokio::time::sleep(SPACING).await;
    }
}

impl AgentState {
    /// Returns true once every handler was tried and the Configurations were read.
    fn is_loaded(&self) -> bool {
        self.handlers.borrow().complete && self.devices.borrow().read
    }

    /// Returns true once every loaded handler is registered, and was called for each Configuration that names it.
    fn is_called(&self) -> bool {
        let report = Arc::clone(&self.report.borrow());
        let serves = |name: &str| report.handlers.iter().any(|one| one.name == name);
        let handlers = Arc::clone(&self.handlers.borrow());
        let loaded = handlers.sources.values();
        let mut loaded = loaded.filter_map(|one| one.handler.as_ref());
        let mut configurations = report.configurations.values();
        loaded.all(|one| serves(&one.facts().description.name))
            && configurations.all(|one| !one.sessions.is_empty() || !serves(&one.handler))
    }

    /// Returns the current report.
    fn node_report(&self) -> NodeReport {
        let report = Arc::clone(&self.report.borrow());
        let mut problems = report.failures();
        problems.extend(self.problems());
        if let Some(kubelet) = &self.kubelet {
            problems.extend_from_slice(&kubelet.slots.borrow().problems);
        }
        let problems = Problems::of(&problems, &report.configurations);
        let mut handlers: BTreeMap<String, ReportedHandler> = BTreeMap::new();
        let loaded = Arc::clone(&self.handlers.borrow());
        for (source, one) in &loaded.sources {
            let handler = handlers.entry(name_of(source, one)).or_default();
            let mut reported = reported_source(one);
            let mut object = loaded.objects.get(source);
            let unread = source_name(source).and_then(|name| problems.sources.get(&name));
            if let (None, Some(unread)) = (&reported.problem, unread) {
                reported.problem = Some((&Problem::InvalidSource(unread.clone())).into());
                object = loaded.objects.get(&unread.source);
            }
            reported.object = object.cloned();
            handler.sources.insert(source.clone(), reported);
        }
        let invalid = |problem: &SourceProblem| ReportedSource {
            problem: Some((&Problem::InvalidSource(problem.clone())).into()),
            object: loaded.objects.get(&problem.source).cloned(),
            ..ReportedSource::default()
        };
        // Problems of files that were never accepted as a source: a component as text, or grants without a component.
        for (source, problem) in &problems.sources {
            if loaded
                .sources
                .keys()
                .any(|one| source_name(one).as_ref() == Some(source))
            {
                continue;
            }
            let name = source.strip_suffix(".wasm").unwrap_or(source);
            let handler = handlers.entry(name.to_owned()).or_default();
            handler.sources.insert(source.clone(), invalid(problem));
        }
        for one in &report.handlers {
            let handler = handlers.entry(one.name.clone()).or_default();
            add_registered(handler, one);
        }
        for (name, problem) in &problems.objects {
            let handler = handlers.entry(name.clone()).or_default();
            let source = problem.source.clone();
            handler.sources.insert(source, invalid(problem));
        }
        let devices = Arc::clone(&self.devices.borrow());
        for (key, one) in &report.configurations {
            let found = devices.configurations.get(key);
            let handler = handlers.entry(one.handler.clone()).or_default();
            let reported = ReportedConfiguration {
                devices: found.map_or(0, |found| found.devices.len()),
                generation: found.and_then(|found| found.configured.configuration.generation),
                problem: problems.configurations.get(key).cloned(),
                ..left_out(one)
            };
            handler.configurations.insert(key.clone(), reported);
        }
        for (key, one) in &report.set.left_out {
            // Without the name of a handler no report would show it.
            if one.handler.is_empty() {
                continue;
            }
            let handler = handlers.entry(one.handler.clone()).or_default();
            let reported = ReportedConfiguration {
                generation: one.generation,
                problem: problems.configurations.get(key).cloned(),
                ..ReportedConfiguration::default()
            };
            handler.configurations.insert(key.clone(), reported);
        }
        NodeReport {
            complete: true,
            handlers: shared_out(handlers),
        }
    }
}

/// Limits the number of handlers to [`MAX_REPORTS`]. Those with a source come first; among names that only Configurations have, namespaces
/// take turns.
fn shared_out(handlers: BTreeMap<String, ReportedHandler>) -> BTreeMap<String, ReportedHandler> {
    if handlers.len() <= MAX_REPORTS {
        return handlers;
    }
    let (with_source, others): (Vec<_>, Vec<_>) = handlers
        .into_iter()
        .partition(|(_, handler)| !handler.sources.is_empty());
    let others = round_robin(others, |(_, handler)| {
        let first = handler.configurations.keys().next();
        first.map(|key| key.namespace().to_owned())
    });
    let all = with_source.into_iter().chain(others);
    all.take(MAX_REPORTS).collect()
}

/// First problem of each Configuration, of each source, and of each ConfigMap without a source.
#[derive(Default)]
struct Problems {
    configurations: BTreeMap<ConfigurationKey, ReportedProblem>,
    sources: BTreeMap<String, SourceProblem>,
    /// Problems by the name of the ConfigMap, which usually is that of the handler.
    objects: BTreeMap<String, SourceProblem>,
}

impl Problems {
    fn of(
        problems: &[Problem],
        configurations: &BTreeMap<ConfigurationKey, ConfigurationReport>,
    ) -> Self {
        let mut first = Self::default();
        for problem in problems {
            let key = match problem.subject() {
                Subject::Configuration(key) => Some(key),
                Subject::Resource(name) => {
                    let mut keys = configurations.keys();
                    keys.find(|key| resource(key.name()) == name)
                }
                _ => None,
            };
            if let Some(key) = key {
                let place = first.configurations.entry(key.clone());
                place.or_insert_with(|| problem.into());
            } else if let Problem::InvalidSource(invalid) = problem {
                // A ConfigMap has its files as fields.
                let file = [&invalid.path, &invalid.source].map(|one| source_name(one));
                let object = invalid.source.strip_prefix("ConfigMap ");
                if let (Some((_, name)), [None, None]) =
                    (object.and_then(|one| one.split_once('/')), &file)
                {
                    let place = first.objects.entry(name.to_owned());
                    place.or_insert_with(|| invalid.clone());
                }
                for file in file.into_iter().flatten() {
                    let place = first.sources.entry(file);
                    place.or_insert_with(|| invalid.clone());
                }
            }
        }
        first
    }
}

/// Returns the source that a file of a handler belongs to: its component, gzipped or not, or its grants.
fn source_name(file: &str) -> Option<String> {
    let file = Path::new(file).file_name()?.to_str()?;
    let stem = [".wasm", ".wasm.gz", ".grants.yaml"]
        .iter()
        .find_map(|suffix| file.strip_suffix(suffix))?;
    Some(format!("{stem}.wasm"))
}

/// Returns the name of a source's handler. If the source was never loaded, the name is taken from its file, or from the beginning of an
/// external source's name.
fn name_of(source: &str, loaded: &LoadedSource) -> String {
    let handler = loaded.handler.as_ref();
    let described = handler.map(|one| &one.facts().description.name);
    let registered = loaded.registration.as_ref().map(|one| &one.handler);
    let name = described.or(registered).cloned();
    name.unwrap_or_else(|| {
        if let Some((handler, _)) = source.split_once('@') {
            return handler.to_owned();
        }
        let file = source_name(source).unwrap_or_else(|| source.to_owned());
        file.strip_suffix(".wasm").unwrap_or(&file).to_owned()
    })
}

fn reported_source(loaded: &LoadedSource) -> ReportedSource {
    let facts = loaded.handler.as_ref().map(|one| one.facts());
    let endpoint = facts.and_then(|facts| facts.endpoint.clone());
    let component = facts.filter(|facts| facts.endpoint.is_none());
    let refused = loaded.error.as_ref();
    ReportedSource {
        endpoint,
        version: component.map(|facts| facts.description.version.clone()),
        digest: component.map(|facts| facts.digest.0.clone()),
        missing_grants: refused.map_or_else(Vec::new, |error| error.missing_grants.clone()),
        problem: refused.map(|error| ReportedProblem {
            reason: HANDLER_REFUSED.to_owned(),
            message: error.to_string(),
        }),
        object: None,
    }
}

/// Adds a source from the registry. Of several sources the most active one determines the phase of the handler.
fn add_registered(handler: &mut ReportedHandler, registered: &HandlerReport) {
    let phase = match registered.status {
        "Active" => HandlerPhase::Active,
        "Waiting" => HandlerPhase::Waiting,
        _ => HandlerPhase::Offline,
    };
    if handler.since.is_none() || phase > handler.phase {
        handler.phase = phase;
        handler.since = Some(registered.since);
    }
    let source = handler.sources.entry(registered.source.clone());
    let problem = &mut source.or_default().problem;
    if phase == HandlerPhase::Offline && problem.is_none() {
        let reason = <&str>::from(Reason::DiscoveryFailed).to_owned();
        let report_of = |message| ReportedProblem { reason, message };
        *problem = registered.last_error.clone().map(report_of);
    }
}

/// Counts the findings that are not devices and the denied devices and requests, and names the first of each in alphabetical order, which
/// does not change from call to call.
fn left_out(report: &ConfigurationReport) -> ReportedConfiguration {
    let count = |shown: usize, more: u64| {
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        shown.saturating_add(more)
    };
    let mut left_out = ReportedConfiguration::default();
    for session in &report.sessions {
        let skipped = count(session.skipped.len(), session.skipped_dropped);
        left_out.skipped = left_out.skipped.saturating_add(skipped);
        let denied = count(session.left_out.len(), session.left_out_dropped);
        let denied = denied.saturating_add(session.call.denied.len());
        left_out.denied = left_out.denied.saturating_add(denied);
    }
    let sessions = || report.sessions.iter();
    let skipped = sessions().flat_map(|one| &one.skipped).min();
    left_out.first_skipped =
        skipped.map(|one| format!("{} ({}): {}", one.subject, one.rule, one.reason));
    let devices = sessions().flat_map(|one| &one.left_out);
    let devices = devices.map(|one| format!("device {}: {}", one.id, one.reason));
    let requests = sessions().flat_map(|one| one.call.denied.iter().cloned());
    left_out.first_denied = devices.min().or_else(|| requests.min());
    left_out
}

#[cfg(test)]
mod tests;
