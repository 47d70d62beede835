//! Reads the reports of nodes: `discoveryhandlers.leafhost.dev`, within the bounds that agents keep. Knows neither writers nor readers.

use leafhost_core::configuration::MAX_CONFIGURATIONS;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::node_report::{
    HandlerPhase, ObjectName, ReportedConfiguration, ReportedHandler, ReportedProblem,
    ReportedSource,
};
use leafhost_core::text;

use crate::crd::{DiscoveryHandler, Phase};

/// Label with the node, by which agents watch their own reports.
pub const NODE_LABEL: &str = "leafhost.dev/node";
/// Maximum size of a text, in bytes.
pub const MAX_TEXT: usize = 512;
/// Maximum number of sources of an object. The policies allow an object 64, and 256 KiB of text in all.
pub const MAX_SOURCES: usize = 64;
/// Maximum number of missing grants of a source.
pub const MAX_GRANTS: usize = 12;

/// Converts an object to a report, within the bounds that an agent keeps.
pub fn reported(object: DiscoveryHandler) -> ReportedHandler {
    let status = object.status.unwrap_or_default();
    let problem = |reason: Option<String>, message: Option<String>| {
        Some(ReportedProblem {
            message: bounded(&message?),
            reason: bounded(&reason?),
        })
    };
    let configurations = status.configurations.into_iter().take(MAX_CONFIGURATIONS);
    let configurations = configurations.filter_map(|one| {
        let reported = ReportedConfiguration {
            devices: usize::try_from(one.devices).unwrap_or(usize::MAX),
            skipped: usize::try_from(one.skipped).unwrap_or(usize::MAX),
            first_skipped: one.first_skipped.map(|text| bounded(&text)),
            denied: usize::try_from(one.denied).unwrap_or(usize::MAX),
            first_denied: one.first_denied.map(|text| bounded(&text)),
            generation: one.generation,
            problem: problem(one.reason, one.problem),
        };
        Some((
            ConfigurationKey::new(&one.namespace, &one.name).ok()?,
            reported,
        ))
    });
    let sources = status.sources.into_iter().take(MAX_SOURCES);
    let short = |text: Option<String>| text.map(|text| bounded(&text));
    let sources = sources.map(|source| {
        let missing = source.missing_grants.iter().take(MAX_GRANTS);
        let reported = ReportedSource {
            endpoint: short(source.endpoint),
            version: short(source.version),
            digest: short(source.digest),
            missing_grants: missing.map(|one| bounded(one)).collect(),
            problem: problem(source.reason, source.problem),
            object: source.config_map.map(|object| ObjectName {
                namespace: bounded(&object.namespace),
                name: bounded(&object.name),
                uid: bounded(&object.uid),
            }),
        };
        (bounded(&source.name), reported)
    });
    ReportedHandler {
        phase: match status.phase {
            Phase::Waiting => HandlerPhase::Waiting,
            Phase::Active => HandlerPhase::Active,
            Phase::Offline => HandlerPhase::Offline,
        },
        since: status.since.and_then(|since| since.parse().ok()),
        sources: sources.collect(),
        configurations: configurations.collect(),
    }
}

/// Returns the size of an object in bytes.
pub fn size(object: &DiscoveryHandler) -> usize {
    serde_json::to_vec(object).map_or(usize::MAX, |bytes| bytes.len())
}

/// Abridges a text to [`MAX_TEXT`].
pub fn bounded(one: &str) -> String {
    text::abridge(one, MAX_TEXT)
}
