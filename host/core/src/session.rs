//! The session: one Configuration × one source of its handler on this node, yielding reports until it is dropped.
//!
//! A session is never a function that returns a list: a component is called again and again, a stream pushes, an
//! external handler talks gRPC; the agent sees reports all the same.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::configuration::FieldProblem;
use crate::device::Device;
use crate::fault::Fault;
use crate::left_out::LeftOuts;
use crate::names::ConfigurationKey;

/// What a session works for. A change of any field is a new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSpec {
    /// The node.
    pub node: String,
    /// The Configuration.
    pub configuration: ConfigurationKey,
    /// Its details.
    pub details: String,
    /// Its properties, resolved, sorted by name.
    pub properties: Vec<Property>,
    /// What the first call is told.
    pub opening: Opening,
}

/// Why a session was opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The agent started, the Configuration appeared, or the handler was replaced.
    First,
    /// Details, properties or grants changed.
    Changed,
}

/// A resolved discovery property.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    /// The name.
    pub name: String,
    /// The value; absent for an optional reference to nothing.
    pub value: Option<Arc<[u8]>>,
    /// Came from a Secret: never shown.
    pub secret: bool,
}

impl std::fmt::Debug for Property {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Property")
            .field("name", &self.name)
            .field("secret", &self.secret)
            .finish_non_exhaustive()
    }
}

/// One Configuration × one source of its handler.
#[async_trait]
pub trait Session: Send {
    /// Waits until the handler has said something, or failed to. Never ends; whoever has enough drops the session.
    /// Cancel-safe: a dropped future loses no report.
    async fn next(&mut self) -> Report;
}

/// What came of one call, or of one message of a handler that pushes.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// What was said.
    pub outcome: Outcome,
    /// Things seen and left out, and why; at most 1,000. Kept also when the call faulted.
    pub explained: Vec<Explanation>,
    /// How many more explanations there were.
    pub explained_dropped: u64,
    /// What it cost.
    pub call: CallStats,
}

/// What a call cost.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct CallStats {
    /// Why the handler was called: `first`, `timer`, `udev`, ….
    pub events: Vec<&'static str>,
    /// From when the call was due until the guest began: it waited for a place among the calls that run at once, or for the machine.
    pub late: Duration,
    /// Wall clock, from when the guest began.
    pub wall: Duration,
    /// Computing in the guest.
    pub cpu: Duration,
    /// The guest's linear memory at its largest, in bytes.
    pub memory: u64,
    /// Calls of capabilities that were denied, by what was asked; and a cursor that was not kept.
    pub denied: Vec<String>,
    /// Log lines that went over the rate and were dropped.
    pub log_dropped: u64,
    /// When the handler is called next if nothing wakes it; absent: only on an event.
    pub next: Option<Duration>,
    /// Wakes that the host could not serve, and why.
    pub wakes_refused: Vec<String>,
}

/// What a handler said.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Devices.
    Discovered(Discovery),
    /// The details are wrong. No further call until they change.
    InvalidDetails(Vec<FieldProblem>),
    /// Something is not there at the moment. An answer, not a failure.
    Unavailable(String),
    /// No answer.
    Faulted(Fault),
}

/// The devices of an answer, each checked against the contract and the grants.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovery {
    /// The devices.
    pub devices: Devices,
    /// Ids known to have left.
    pub departed: Vec<String>,
    /// Devices that were in the answer and are not in `devices`. Their earlier Instances stay as if the
    /// answer had been partial in them.
    pub left_out: LeftOuts,
}

/// The devices of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Devices {
    /// As last time.
    Unchanged,
    /// All there are; ids are distinct.
    Complete(Vec<Device>),
    /// Some; ids are distinct.
    Partial(Vec<Device>),
}

/// Something seen that is not a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Explanation {
    /// The thing.
    pub subject: String,
    /// What decided.
    pub rule: String,
    /// What did not fit.
    pub reason: String,
}
