//! Reasons why a file does not become a handler.

/// Reason why a file is refused, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub(crate) struct Refusal {
    pub(crate) message: String,
    /// Grants that the file lacks.
    pub(crate) missing_grants: Vec<String>,
    /// True if the same file may be accepted another time, such as when the machine is less busy.
    pub(crate) is_transient: bool,
}

impl Refusal {
    /// Refuses a file until it changes.
    pub(crate) fn of_file(message: impl Into<String>) -> Self {
        Self {
            message: message.into(),
            missing_grants: Vec::new(),
            is_transient: false,
        }
    }

    /// Refuses a file for now: it may be accepted when it is tried again.
    pub(crate) fn for_now(message: impl Into<String>) -> Self {
        Self {
            is_transient: true,
            ..Self::of_file(message)
        }
    }
}

impl From<tokio::task::JoinError> for Refusal {
    fn from(error: tokio::task::JoinError) -> Self {
        Self::for_now(format!(
            "the task that loaded it panicked: {error}; this is a bug, see the log"
        ))
    }
}
