//! Faults: what went wrong with a call of a handler, whose doing it is, and what it is called in metrics.

use strum::{IntoStaticStr, VariantArray};

/// Why a call of a handler ended without an answer. The text is the metric label and what `status` shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, IntoStaticStr, VariantArray)]
#[strum(serialize_all = "snake_case")]
pub enum FaultReason {
    /// It computed longer than its grants allow.
    CpuBudget,
    /// It took longer than its grants allow.
    WallTimeout,
    /// It needed more memory, tables or guest instances than its grants allow, and died of it.
    Memory,
    /// It trapped: a panic, an invalid access, a stack overflow.
    Trap,
    /// It called exit.
    Exit,
    /// Its answer was over a limit.
    AnswerTooLarge,
    /// It made the host hold more than allowed: handles or bytes.
    HostResources,
    /// The connection to an external handler was lost.
    ConnectionLost,
    /// The host could not make the call.
    Host,
}

impl FaultReason {
    /// The label in metrics and in `status`.
    pub fn label(self) -> &'static str {
        self.into()
    }
}

/// A call that ended without an answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}: {message}", reason.label())]
pub struct Fault {
    /// Why.
    pub reason: FaultReason,
    /// What happened, in words for the operator.
    pub message: String,
}

impl Fault {
    /// A fault.
    pub fn new(reason: FaultReason, message: impl Into<String>) -> Self {
        Self {
            reason,
            message: message.into(),
        }
    }
}
