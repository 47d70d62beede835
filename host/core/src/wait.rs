//! Waiting for a moment that may not come, and for a publisher that may end.

use tokio::time::Instant;

/// Why a task ended although nobody asked it to: what it follows is no longer published.
#[derive(Debug, thiserror::Error)]
#[error("the source of {0} has ended")]
pub struct SourceEnded(pub &'static str);

/// Waits until then; for ever if there is no then.
pub async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}
