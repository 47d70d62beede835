//! The status document: what `/status` serves, `leafhost status -o json` prints and the tables are made from.
//!
//! Knows nothing of how it comes about; fields are only ever added, and absent ones are read as empty, so that a newer program
//! reads an older agent's document.

use leafhost_core::configuration::FieldProblem;
use leafhost_core::instance::Instance;
use leafhost_core::left_out::LeftOut;
use leafhost_core::problem::Problem;
use leafhost_core::session::Explanation;
use serde::{Deserialize, Serialize};

/// The whole document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// The node's name.
    pub node: String,
    /// The agent's version.
    pub version: String,
    /// `standalone`.
    pub mode: String,
    /// Where the CDI specs are, if any are written.
    pub cdi_dir: Option<String>,
    /// One entry a handler and source, sorted by name and source.
    pub handlers: Vec<HandlerView>,
    /// Sorted by namespace and name.
    pub configurations: Vec<ConfigurationView>,
    /// The `akri.sh/v0` objects, sorted by namespace and name.
    pub instances: Vec<Instance>,
    /// The kubelet and what it is offered; absent if it is offered nothing.
    pub kubelet: Option<KubeletView>,
    /// What concerns no single Configuration: broken files, folders that cannot be read, no udev, no root.
    pub problems: Vec<ProblemView>,
}

/// Something that is wrong.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProblemView {
    /// The reason, in CamelCase: for programs.
    pub reason: String,
    /// What is affected: `Configuration default/cameras`.
    pub subject: String,
    /// What is wrong, with the remedy: for people.
    pub message: String,
}

impl From<&Problem> for ProblemView {
    fn from(problem: &Problem) -> Self {
        Self {
            reason: problem.reason().to_owned(),
            subject: problem.subject().to_string(),
            message: problem.to_string(),
        }
    }
}

/// The kubelet of this machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletView {
    /// Its folder.
    pub dir: String,
    /// Whether its registration socket is there.
    pub present: bool,
    /// Whether it runs all the same, and must be restarted to make it again.
    pub socket_missing: bool,
    /// One entry a resource, sorted by name.
    pub resources: Vec<ResourceView>,
    /// The slots this node has, sorted by resource and device id.
    pub slots: Vec<SlotView>,
    /// What keeps devices from being offered or slots from coming back, with the remedy.
    pub problems: Vec<ProblemView>,
}

/// A resource the kubelet is offered.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceView {
    /// `akri.sh/<instance>` or `akri.sh/<configuration>`.
    pub name: String,
    /// The file name of its socket.
    pub socket: String,
    /// `waiting` for the kubelet; `registered`; `listed` when the kubelet follows it; `failed`.
    pub state: String,
    /// How often it was registered.
    pub registrations: u64,
    /// What is wrong, with the remedy.
    pub problem: Option<String>,
    /// Allocations that were refused since the last that was granted; absent when there was none for ten minutes.
    pub refused: Option<RefusedView>,
}

/// Allocations of a resource that were refused.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedView {
    /// How many.
    pub count: u64,
    /// When the last one was, RFC 3339.
    pub last: String,
    /// Why the last one was: what stands in the pod's status.
    pub reason: String,
}

/// A slot this node has.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotView {
    /// The slot's id.
    pub slot: String,
    /// The resource it was allocated through.
    pub resource: String,
    /// The device id there.
    pub device: String,
    /// The pods that were seen to have it, `namespace/name`; absent while nobody was.
    pub holder: Option<String>,
}

/// A handler and source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HandlerView {
    /// The handler's name; empty while the source never loaded.
    pub name: String,
    /// The source: a file name, or an external handler's name and where it serves.
    pub source: String,
    /// `component`, or `external` for a handler that runs elsewhere and has registered; empty while the source never loaded.
    pub kind: String,
    /// Where an external handler serves.
    pub endpoint: Option<String>,
    /// `Waiting`, `Active`, `Offline`; `Removed` after it was Offline for too long, until it is tried again; `Loading` while a
    /// source is loaded for the first time, `Refused` if it never loaded, `Offline` if it is not loaded any more because the agent has died of
    /// it.
    pub status: String,
    /// Since when, RFC 3339.
    pub since: Option<String>,
    /// The handler's own version.
    pub version: String,
    /// The sha256 of its bytes.
    pub digest: String,
    /// How many devices it has.
    pub devices: usize,
    /// Why the newest bytes do not serve, or what the last failed session said.
    pub last_error: Option<String>,
    /// Grants the newest bytes need and do not have.
    pub missing_grants: Vec<String>,
    /// What an operator should know although it serves.
    pub warnings: Vec<String>,
}

/// A Configuration.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationView {
    /// The name.
    pub name: String,
    /// The namespace.
    pub namespace: String,
    /// The handler it names.
    pub handler: String,
    /// How many devices it has now, those in grace included.
    pub devices: usize,
    /// How many of them are unhealthy or missing.
    pub unhealthy: usize,
    /// What is wrong.
    pub problems: Vec<ProblemView>,
    /// What has no effect although it serves, such as a misspelt field.
    pub warnings: Vec<ProblemView>,
    /// What the handler says of the details.
    pub invalid_details: Vec<FieldProblem>,
    /// One entry a session.
    pub sessions: Vec<SessionView>,
    /// The CDI kind, `akri.sh/<name>`, if the specs are written.
    pub cdi_kind: Option<String>,
    /// Says how the scheduler is offered its devices; absent where device plugins give them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationView>,
}

/// Says how the scheduler is offered the devices of a Configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationView {
    /// `dra`.
    pub by: String,
    /// Counts the local devices that this node offers; the controller offers shared ones.
    pub local_devices: usize,
    /// Says how claims share a device of several slots: `shares` of one device, or `slots` that are devices each. Absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<String>,
}

/// A session: one Configuration × one source of its handler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionView {
    /// The source.
    pub source: String,
    /// When the last call ended, RFC 3339.
    pub last_call: Option<String>,
    /// Why it was made.
    pub events: Vec<String>,
    /// How long it took, in milliseconds.
    pub wall_ms: f64,
    /// How much of that the guest computed.
    pub cpu_ms: f64,
    /// The guest's memory at its largest, with what the host kept for it, in bytes.
    pub memory_bytes: u64,
    /// `ok`, `partial`, `unavailable`, `invalid-details`, or the fault's reason.
    pub result: String,
    /// What went wrong at the last call, if something did.
    pub error: Option<String>,
    /// How many calls failed in a row.
    pub failures: u64,
    /// How long the handler waits if nothing wakes it, in milliseconds.
    pub next_ms: Option<u64>,
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
    /// Capabilities that were asked for and denied.
    pub denied: Vec<String>,
    /// Wakes that could not be served.
    pub wakes_refused: Vec<String>,
}
