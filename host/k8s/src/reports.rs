//! Reports of nodes: `discoveryhandlers.leafhost.dev`, and the bounds that agents keep and the controller requires. Knows neither of them.

use leafhost_core::configuration::MAX_CONFIGURATIONS;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::node_report::{
    HandlerPhase, ObjectName, ReportedConfiguration, ReportedHandler, ReportedProblem,
    ReportedSource,
};
use leafhost_core::text;

use crate::crd::{DiscoveryHandler, DiscoveryHandlerStatus};

/// Label with the node, by which agents watch their own reports.
pub const NODE_LABEL: &str = "leafhost.dev/node";
/// Maximum size of a text, in bytes.
pub const MAX_TEXT: usize = 512;
/// Maximum number of sources of an object. The policies allow an object 64, and 256 KiB of text in all.
pub const MAX_SOURCES: usize = 64;
/// Maximum number of missing grants of a source.
pub const MAX_GRANTS: usize = 12;
/// Maximum of a count.
const MAX_COUNT: usize = 0xffff_ffff;

/// Converts an object to a report, within the bounds that an agent keeps.
pub fn reported(object: DiscoveryHandler) -> ReportedHandler {
    let waiting = || DiscoveryHandlerStatus {
        phase: HandlerPhase::Waiting,
        ..DiscoveryHandlerStatus::default()
    };
    let status = object.status.unwrap_or_else(waiting);
    let configurations = status.configurations.into_iter().take(MAX_CONFIGURATIONS);
    let configurations = configurations.filter_map(|one| {
        let key = ConfigurationKey::new(&one.namespace, &one.name).ok()?;
        Some((key, configuration(&one.configuration, MAX_TEXT, MAX_TEXT)))
    });
    let sources = status.sources.into_iter().take(MAX_SOURCES);
    let sources = sources.map(|one| (bounded(&one.name), source(&one.source, MAX_TEXT)));
    ReportedHandler {
        phase: status.phase,
        since: status.since.and_then(|since| since.parse().ok()),
        sources: sources.collect(),
        configurations: configurations.collect(),
    }
}

/// Returns a source with texts of at most `most` bytes, except those that are never long.
pub fn source(source: &ReportedSource, most: usize) -> ReportedSource {
    let short = |text: &String| text::abridge(text, most);
    let grants = source.missing_grants.iter().take(MAX_GRANTS);
    ReportedSource {
        endpoint: source.endpoint.as_ref().map(short),
        version: source.version.as_ref().map(short),
        digest: source.digest.as_deref().map(bounded),
        missing_grants: grants.map(short).collect(),
        problem: source.problem.as_ref().map(|one| problem(one, most)),
        object: source.object.as_ref().map(|object| ObjectName {
            namespace: bounded(&object.namespace),
            name: bounded(&object.name),
            uid: bounded(&object.uid),
        }),
    }
}

/// Returns the report on a Configuration, with a problem of at most `most` bytes, and with a first skipped and a first denied entry of at
/// most `most_left_out` bytes each.
pub fn configuration(
    one: &ReportedConfiguration,
    most: usize,
    most_left_out: usize,
) -> ReportedConfiguration {
    let count = |count: usize| count.min(MAX_COUNT);
    let short = |text: &String| text::abridge(text, most_left_out);
    ReportedConfiguration {
        devices: count(one.devices),
        skipped: count(one.skipped),
        first_skipped: one.first_skipped.as_ref().map(short),
        denied: count(one.denied),
        first_denied: one.first_denied.as_ref().map(short),
        generation: one.generation,
        problem: one.problem.as_ref().map(|one| problem(one, most)),
    }
}

fn problem(problem: &ReportedProblem, most: usize) -> ReportedProblem {
    ReportedProblem {
        reason: bounded(&problem.reason),
        message: text::abridge(&problem.message, most),
    }
}

/// Returns the size of an object in bytes.
pub fn size(object: &DiscoveryHandler) -> usize {
    serde_json::to_vec(object).map_or(usize::MAX, |bytes| bytes.len())
}

/// Abridges a text to [`MAX_TEXT`] bytes.
pub fn bounded(one: &str) -> String {
    text::abridge(one, MAX_TEXT)
}
