//! What the discovery task publishes: devices for those who act on them, the course of things for those who show it.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::Timestamp;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::fault::FaultReason;
use leafhost_core::left_out::LeftOut;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{LeftOutConfiguration, SourceProblem};
use leafhost_core::problem::Problem;
use leafhost_core::session::{CallStats, Explanation};

/// The course of discovery.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiscoveryReport {
    /// By handler name and source.
    pub handlers: Vec<HandlerReport>,
    /// By Configuration.
    pub configurations: BTreeMap<ConfigurationKey, ConfigurationReport>,
    /// What cannot be used among the Configurations.
    pub problems: Vec<SourceProblem>,
    /// What has no effect in them.
    pub warnings: Vec<SourceProblem>,
    /// The Configurations that are not taken because there are too many.
    pub left_out: BTreeMap<ConfigurationKey, LeftOutConfiguration>,
}

impl DiscoveryReport {
    /// What is said of the Configurations that are left out.
    pub fn too_many(&self) -> impl Iterator<Item = Problem> {
        let left_out = self.left_out.iter();
        left_out.map(|(key, one)| Problem::TooManyConfigurations {
            configuration: key.clone(),
            cap: one.cap.clone(),
        })
    }

    /// The sessions whose last call brought no devices.
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

/// A handler in the registry.
#[derive(Debug, Clone, PartialEq)]
pub struct HandlerReport {
    /// The handler's name.
    pub name: String,
    /// The source.
    pub source: String,
    /// `Waiting`, `Active`, `Offline` or `Removed`.
    pub status: &'static str,
    /// Since when.
    pub since: Timestamp,
    /// How many devices its sessions have.
    pub devices: usize,
    /// What a failing session says.
    pub last_error: Option<String>,
}

/// A Configuration.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ConfigurationReport {
    /// The handler it names.
    pub handler: String,
    /// What is wrong.
    pub problems: Vec<Problem>,
    /// What the handler says of the details.
    pub invalid_details: Vec<FieldProblem>,
    /// One entry a session, by source.
    pub sessions: Vec<Arc<SessionReport>>,
}

/// A session: one Configuration × one source of its handler.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SessionReport {
    /// The source; empty before the first call.
    pub source: String,
    /// When the last call ended.
    pub last_call: Option<Timestamp>,
    /// What that call took, and what it asked for in vain.
    pub call: CallStats,
    /// What came of it.
    pub result: CallResult,
    /// What went wrong, if something did.
    pub error: Option<String>,
    /// How many calls failed in a row.
    pub failures: u64,
    /// How many devices the session has.
    pub devices: usize,
    /// Devices that were in the answer and were not taken.
    pub left_out: Vec<LeftOut>,
    /// How many more there were.
    pub left_out_dropped: u64,
    /// Things seen that are no devices, and why.
    pub skipped: Vec<Explanation>,
    /// How many more there were.
    pub skipped_dropped: u64,
}

/// What came of a call.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum CallResult {
    /// There was none yet.
    #[default]
    None,
    /// All devices there are.
    Ok,
    /// Devices, perhaps not all.
    Partial,
    /// The handler refuses the details.
    InvalidDetails,
    /// The handler cannot tell for now.
    Unavailable,
    /// The call ended without an answer.
    Faulted(FaultReason),
}

impl CallResult {
    /// The word in the log and in the status.
    pub fn label(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Ok => "ok",
            Self::Partial => "partial",
            Self::InvalidDetails => "invalid-details",
            Self::Unavailable => "unavailable",
            Self::Faulted(reason) => reason.label(),
        }
    }
}
