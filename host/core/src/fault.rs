//! Faults: reasons why a call of a handler failed, with their labels in metrics.

use strum::{IntoStaticStr, VariantArray};

/// Reason why a call of a handler ended without an answer. Its label is used in metrics and in `status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum FaultReason {
    /// Exceeded the CPU time of its grants.
    CpuBudget,
    /// Exceeded the wall clock time of its grants.
    WallTimeout,
    /// Died because it needed more memory, tables or guest instances than its grants allow.
    Memory,
    /// Trapped: a panic, an invalid access, a stack overflow.
    Trap,
    /// Called exit.
    Exit,
    /// Answer over a limit.
    AnswerTooLarge,
    /// Made the host hold more handles or bytes than allowed.
    HostResources,
    /// Connection to an external handler lost.
    ConnectionLost,
    /// Call not possible because of an error in the host.
    Host,
}

impl FaultReason {
    /// Returns the label in metrics and in `status`.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// Call of a handler that ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", reason.label())]
pub struct Fault {
    /// Reason of the fault.
    pub reason: FaultReason,
    /// Description of the fault for the operator.
    pub message: String,
}

impl Fault {
    /// Creates a fault.
    pub fn new(reason: FaultReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
