//! Published state of the discovery task: devices for the tasks that act on them, a report for people.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::FaultReason;
use leafhost_core::left_out::LeftOut;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::ConfigurationSet;
use leafhost_core::problem::Problem;
use leafhost_core::session::{CallStats, Explanation};

/// Report on discovery.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiscoveryReport {
    /// Handlers, ordered by name and source.
    pub handlers: Vec<HandlerReport>,
    /// Configurations.
    pub configurations: BTreeMap<ConfigurationKey, ConfigurationReport>,
    /// Configurations as read, with those that cannot be used or are not accepted.
    pub set: Arc<ConfigurationSet>,
}

impl DiscoveryReport {
    /// Returns a problem for each Configuration that is left out.
    pub fn too_many(&self) -> impl Iterator<Item = Problem> {
        let left_out = self.set.left_out.iter();
        left_out.map(|(key, one)| Problem::TooManyConfigurations {
            configuration: key.clone(),
            cap: one.cap.clone(),
        })
    }

    /// Returns a problem for each session whose last call failed.
    pub fn failures(&self) -> Vec<Problem> {
        let mut failures = Vec::new();
        for (configuration, report) in &self.configurations {
            for session in report.sessions.iter().filter(|one| one.failures > 0) {
                let (configuration, source_name) = (configuration.clone(), session.source.clone());
                failures.push(match session.result {
                    CallResult::InvalidDetails => Problem::InvalidDetails {
                        configuration,
                        source_name,
                        fields: report.invalid_details.clone(),
                    },
                    result => Problem::DiscoveryFailed {
                        configuration,
                        source_name,
                        result: result.label(),
                        error: session.error.clone().unwrap_or_default(),
                    },
                });
            }
        }
        failures
    }
}

/// Handler in the registry.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerReport {
    /// Name of the handler.
    pub name: String,
    /// Source of the handler.
    pub source: String,
    /// `Waiting`, `Active`, `Offline` or `Removed`.
    pub status: &'static str,
    /// Time since which the handler has had that status.
    pub since: Timestamp,
    /// Number of devices of the handler's sessions.
    pub devices: usize,
    /// Error of a failing session.
    pub last_error: Option<String>,
}

/// Report on a Configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigurationReport {
    /// Name of the Configuration's handler.
    pub handler: String,
    /// Problems of the Configuration.
    pub problems: Vec<Problem>,
    /// Errors that the handler found in the details.
    pub invalid_details: Vec<FieldProblem>,
    /// Sessions by source.
    pub sessions: Vec<Arc<SessionReport>>,
}

/// Report on a session: one Configuration × one source of its handler.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionReport {
    /// Name of the source; empty before the first call.
    pub source: String,
    /// End of the last call.
    pub last_call: Option<Timestamp>,
    /// Statistics of that call.
    pub call: CallStats,
    /// Result of that call.
    pub result: CallResult,
    /// Error of that call, if it failed.
    pub error: Option<String>,
    /// Number of failed calls in a row.
    pub failures: u64,
    /// Number of devices of the session.
    pub devices: usize,
    /// Devices of the answer that were left out.
    pub left_out: Vec<LeftOut>,
    /// Number of further devices that were left out.
    pub left_out_dropped: u64,
    /// Findings that are not devices, with the reason.
    pub skipped: Vec<Explanation>,
    /// Number of further findings that are not devices.
    pub skipped_dropped: u64,
}

/// Result of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, strum::IntoStaticStr)]
#[strum(serialize_all = "kebab-case")]
pub enum CallResult {
    /// No call yet.
    #[default]
    #[strum(to_string = "")]
    None,
    /// The answer has all devices.
    Ok,
    /// The answer may lack devices.
    Partial,
    /// The handler rejects the details.
    InvalidDetails,
    /// The handler cannot answer at the moment.
    Unavailable,
    /// The call ended without an answer.
    #[strum(transparent)]
    Faulted(FaultReason),
}

impl CallResult {
    /// Returns the label in the log and in the status.
    pub fn label(self) -> &'static str {
        self.into()
    }
}
