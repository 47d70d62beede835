//! The error with which the controller ends: a watched source has ended.

/// Names the source that has ended.
#[derive(Debug, thiserror::Error)]
#[error("the source of {0} has ended")]
pub struct Error(pub(crate) &'static str);
