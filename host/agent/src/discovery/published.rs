//! What the discovery task publishes: devices for those who act on them, the course of things for those who show it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;
use leafhost_core::configuration::FieldProblem;
use leafhost_core::device::DeviceKey;
use leafhost_core::names::ConfigurationKey;
use leafhost_core::ports::{ConfiguredDiscovery, SourceProblem};

use crate::devices::DeviceView;
use crate::status::SessionView;

/// The devices of all Configurations. Equal snapshots are published once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DeviceSnapshot {
    /// Whether Configurations and handlers have been read once.
    pub read: bool,
    /// Whether a Configuration that is not here has been deleted.
    pub complete: bool,
    /// Configurations that cannot be used as they are now written: not here, and not deleted either.
    pub spared: BTreeSet<ConfigurationKey>,
    /// By Configuration.
    pub configurations: BTreeMap<ConfigurationKey, Arc<ConfigurationDevices>>,
}

impl DeviceSnapshot {
    /// Whether the other one is the same. What is equal is kept as the same object, so this looks at no device.
    pub(super) fn is(&self, other: &Self) -> bool {
        let Self {
            read,
            complete,
            spared,
            configurations,
        } = self;
        let mut pairs = configurations.iter().zip(&other.configurations);
        *read == other.read
            && *complete == other.complete
            && *spared == other.spared
            && configurations.len() == other.configurations.len()
            && pairs.all(|((one, view), (two, other))| one == two && Arc::ptr_eq(view, other))
    }
}

/// The devices of a Configuration.
#[derive(Debug, Clone, PartialEq)]
pub struct ConfigurationDevices {
    /// The Configuration they belong to.
    pub configured: Arc<ConfiguredDiscovery>,
    /// The devices it has or still keeps.
    pub devices: BTreeMap<DeviceKey, DeviceView>,
    /// Whether every session has given a complete answer, so that nothing else is there.
    pub settled: bool,
}

/// The course of discovery.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DiscoveryReport {
    /// By handler name and source.
    pub handlers: Vec<HandlerReport>,
    /// By Configuration.
    pub configurations: BTreeMap<ConfigurationKey, ConfigurationReport>,
    /// What cannot be used among the Configurations.
    pub problems: Vec<SourceProblem>,
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
    /// What is wrong, in words.
    pub problems: Vec<String>,
    /// What the handler says of the details.
    pub invalid_details: Vec<FieldProblem>,
    /// One entry a session, by source.
    pub sessions: Vec<Arc<SessionView>>,
}
