//! Sessions: one Configuration × one source of its handler on this node, yielding reports until dropped.
//!
//! A session hides how its handler works: a component is called again and again, an external handler sends messages over
//! gRPC. The agent sees reports in either case.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::configuration::FieldProblem;
use crate::device::Device;
use crate::fault::Fault;
use crate::left_out::LeftOuts;
use crate::names::ConfigurationKey;

/// Input of a session. A change of any field requires a new session.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionSpec {
    /// Name of the node.
    pub node: String,
    /// Configuration that the session serves.
    pub configuration: ConfigurationKey,
    /// Discovery details of the Configuration.
    pub details: String,
    /// Resolved properties, sorted by name.
    pub properties: Vec<Property>,
    /// Reason that is passed to the first call.
    pub opening: Opening,
}

/// Reason for opening a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// The agent started, the Configuration appeared, or the handler was replaced.
    First,
    /// Details, properties or grants changed.
    Changed,
}

/// Resolved discovery property.
#[derive(Clone, PartialEq, Eq)]
pub struct Property {
    /// Name of the property.
    pub name: String,
    /// Value; always present if [`resolve`](crate::properties::resolve) made the property: it leaves out an optional one
    /// without a value.
    pub value: Option<Arc<[u8]>>,
    /// True if the value comes from a Secret and must not be shown.
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

/// Connection of one Configuration to one source of its handler.
#[async_trait]
pub trait Session: Send {
    /// Waits for the next report, which may be a failure. A session ends only when it is dropped. Cancel-safe: a dropped future loses no report.
    async fn next(&mut self) -> Report;
}

/// Result of one call, or of one message of a handler that pushes.
#[derive(Debug, Clone, PartialEq)]
pub struct Report {
    /// Answer of the handler.
    pub outcome: Outcome,
    /// Things that the handler saw and left out, with reasons; at most 1,000. Kept even if the call failed.
    pub explained: Vec<Explanation>,
    /// Number of explanations beyond those in `explained`.
    pub explained_dropped: u64,
    /// Cost of the call.
    pub call: CallStats,
}

/// Cost of a call.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallStats {
    /// Reasons for the call: `first`, `timer`, `udev`, ….
    pub events: Vec<&'static str>,
    /// Delay from when the call was due until the guest began: waiting for a place among the concurrent calls, or for
    /// the machine.
    pub late: Duration,
    /// Wall clock time since the guest began.
    pub wall: Duration,
    /// CPU time of the guest.
    pub cpu: Duration,
    /// Peak of the guest's linear memory and of what the host held for it, in bytes.
    pub memory: u64,
    /// Denied requests for capabilities, and the reason if the cursor was not kept.
    pub denied: Vec<String>,
    /// Number of log lines dropped because of the rate limit.
    pub log_dropped: u64,
    /// Delay until the next call without an event; `None` if only an event triggers a call.
    pub next: Option<Duration>,
    /// Wake requests that the host could not serve, with reasons.
    pub wakes_refused: Vec<String>,
}

/// Answer of a handler.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Devices found.
    Discovered(Discovery),
    /// Invalid details. The handler is not called again until they change.
    InvalidDetails(Vec<FieldProblem>),
    /// Temporary absence of something that discovery needs. Counts as an answer, not as a failure.
    Unavailable(String),
    /// No answer.
    Faulted(Fault),
}

/// Devices of an answer, each checked against the contract and the grants.
#[derive(Debug, Clone, PartialEq)]
pub struct Discovery {
    /// Accepted devices.
    pub devices: Devices,
    /// Ids of devices that are known to be gone.
    pub departed: Vec<String>,
    /// Rejected devices of the answer. Their earlier Instances stay, as if the answer were partial with regard to them.
    pub left_out: LeftOuts,
}

/// Device list of an answer.
#[derive(Debug, Clone, PartialEq)]
pub enum Devices {
    /// Same devices as in the last answer.
    Unchanged,
    /// All devices, with distinct ids.
    Complete(Vec<Device>),
    /// Some of the devices, with distinct ids.
    Partial(Vec<Device>),
}

/// Explanation of why something the handler saw is not a device.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Explanation {
    /// Thing that was seen.
    pub subject: String,
    /// Rule that excluded it.
    pub rule: String,
    /// Reason why the rule applies.
    pub reason: String,
}
