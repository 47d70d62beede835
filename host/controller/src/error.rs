//! Why the controller ends: a source of what it acts on has ended.

/// Names the source that has ended.
#[derive(Debug, thiserror::Error)]
#[error("the source of {0} has ended")]
pub struct Error(pub(crate) &'static str);
