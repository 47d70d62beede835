//! The status document: served at `/status`, printed by `leafhost status -o json`, and source of the tables.
//!
//! Does not depend on the code that builds it. Fields are only ever added, and missing ones are read as empty, so that a newer program
//! reads the document of an older agent.

use leafhost_core::configuration::FieldProblem;
use leafhost_core::instance::Instance;
use leafhost_core::left_out::LeftOut;
use leafhost_core::problem::Problem;
use leafhost_core::session::Explanation;
use serde::{Deserialize, Serialize};

/// Status document.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Name of the node.
    pub node: String,
    /// Version of the agent.
    pub version: String,
    /// `standalone` or `cluster`.
    pub mode: String,
    /// Folder of the CDI specs, if any are written.
    pub cdi_dir: Option<String>,
    /// Handlers by source, sorted by name and source.
    pub handlers: Vec<HandlerView>,
    /// Configurations, sorted by namespace and name.
    pub configurations: Vec<ConfigurationView>,
    /// `akri.sh/v0` objects, sorted by namespace and name.
    pub instances: Vec<Instance>,
    /// Kubelet and its resources; `null` if nothing is offered to it.
    pub kubelet: Option<KubeletView>,
    /// Problems of no single Configuration: broken files, folders that cannot be read, no udev, no root.
    pub problems: Vec<ProblemView>,
    /// Notes of no single Configuration: files that are not read, secrets that every user can read.
    pub notes: Vec<ProblemView>,
}

/// Problem as the document shows it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ProblemView {
    /// Reason in CamelCase, for programs.
    pub reason: String,
    /// Affected object: `Configuration default/cameras`.
    pub subject: String,
    /// Problem with its remedy, for users.
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

/// Kubelet of this machine.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeletView {
    /// Folder of the kubelet.
    pub dir: String,
    /// True if its registration socket exists.
    pub present: bool,
    /// True if it runs without the socket, and must be restarted to create it again.
    pub socket_missing: bool,
    /// Resources, sorted by name.
    pub resources: Vec<ResourceView>,
    /// Slots of this node, sorted by resource and device id.
    pub slots: Vec<SlotView>,
    /// Problems that keep devices from being offered or slots from being released, with the remedy.
    pub problems: Vec<ProblemView>,
}

/// Resource offered to the kubelet.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ResourceView {
    /// `akri.sh/<instance>` or `akri.sh/<configuration>`.
    pub name: String,
    /// File name of its socket.
    pub socket: String,
    /// `waiting` for the kubelet; `registered`; `listed` once the kubelet follows it; `failed`.
    pub state: String,
    /// Number of registrations.
    pub registrations: u64,
    /// Problem, with the remedy.
    pub problem: Option<String>,
    /// Refused allocations since the last that was granted; `null` if there was none for ten minutes.
    pub refused: Option<RefusedView>,
}

/// Refused allocations of a resource.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RefusedView {
    /// Number of refusals.
    pub count: u64,
    /// Time of the last refusal, RFC 3339.
    pub last: String,
    /// Reason of the last refusal, as in the pod's status.
    pub reason: String,
}

/// Slot of this node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SlotView {
    /// Id of the slot.
    pub slot: String,
    /// Resource through which it was allocated.
    pub resource: String,
    /// Device id in that resource.
    pub device: String,
    /// Pods that were seen to have the slot, as `namespace/name`; `null` if there are none.
    pub holder: Option<String>,
}

/// Handler of one source.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct HandlerView {
    /// Name of the handler; empty if the source never loaded.
    pub name: String,
    /// Source: a file name, or an external handler's name and address.
    pub source: String,
    /// `component`, or `external` for a handler that runs elsewhere and has registered; empty if the source never loaded.
    pub kind: String,
    /// Address of an external handler.
    pub endpoint: Option<String>,
    /// `Waiting`, `Active`, `Offline`; `Removed` after it was Offline for too long, until it is tried again; `Loading` while a source is
    /// loaded for the first time, `Refused` if it never loaded, `Offline` if it is no longer loaded because the agent died while loading
    /// it.
    pub status: String,
    /// Time since which it has that status, RFC 3339.
    pub since: Option<String>,
    /// Version of the handler.
    pub version: String,
    /// SHA-256 of its bytes.
    pub digest: String,
    /// Number of its devices.
    pub devices: usize,
    /// Reason why the newest bytes do not serve, or error of the last failed session.
    pub last_error: Option<String>,
    /// Grants that the newest bytes need and do not have.
    pub missing_grants: Vec<String>,
    /// Warnings for the operator, although it serves.
    pub warnings: Vec<String>,
}

/// Configuration, with its devices, problems and sessions.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ConfigurationView {
    /// Name of the Configuration.
    pub name: String,
    /// Namespace of the Configuration.
    pub namespace: String,
    /// Handler that it names.
    pub handler: String,
    /// Number of its devices, including those in grace.
    pub devices: usize,
    /// Number of its devices that are unhealthy or missing.
    pub unhealthy: usize,
    /// Problems of the Configuration.
    pub problems: Vec<ProblemView>,
    /// Parts without effect, such as a misspelt field.
    pub warnings: Vec<ProblemView>,
    /// Errors that the handler found in the details.
    pub invalid_details: Vec<FieldProblem>,
    /// Sessions of the Configuration.
    pub sessions: Vec<SessionView>,
    /// CDI kind, `akri.sh/<name>`, if the specs are written.
    pub cdi_kind: Option<String>,
    /// Offer of its devices to the scheduler; absent if device plugins allocate them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationView>,
}

/// Offer of a Configuration's devices to the scheduler.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct AllocationView {
    /// Means of allocation: always `dra`.
    pub by: String,
    /// Number of local devices that this node offers; the controller offers shared ones.
    pub local_devices: usize,
    /// Sharing of a device with several slots: `shares` of one device, or `slots` that are devices each. Absent until it is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sharing: Option<String>,
}

/// Session: one Configuration × one source of its handler.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionView {
    /// Name of the source.
    pub source: String,
    /// End of the last call, RFC 3339.
    pub last_call: Option<String>,
    /// Reasons for the last call: `first`, `timer`, `udev`, ….
    pub events: Vec<String>,
    /// Duration of the call in milliseconds.
    pub wall_ms: f64,
    /// CPU time of the guest in milliseconds.
    pub cpu_ms: f64,
    /// Peak of the guest's linear memory and of what the host kept for it, in bytes.
    pub memory_bytes: u64,
    /// `ok`, `partial`, `unavailable`, `invalid-details`, or the fault's reason.
    pub result: String,
    /// Error of the last call, if it failed.
    pub error: Option<String>,
    /// Number of failed calls in a row.
    pub failures: u64,
    /// Time until the next call if nothing wakes the handler, in milliseconds.
    pub next_ms: Option<u64>,
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
    /// Capabilities that were requested and denied.
    pub denied: Vec<String>,
    /// Wakes that could not be served.
    pub wakes_refused: Vec<String>,
}
