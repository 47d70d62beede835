//! Runs file operations off the async threads, and publishes snapshots that differ.

use std::sync::Arc;

use leafhost_core::wait;
use tokio::sync::watch;

/// Runs `work` where it may block. Propagates a panic to the caller; never returns if the runtime shuts down.
pub async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(work).await {
        Ok(value) => value,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(_) => std::future::pending().await,
        },
    }
}

/// Publishes `next` if it differs from the last published value.
pub fn publish<T: PartialEq>(sender: &watch::Sender<Arc<T>>, next: T) {
    wait::publish(sender, Arc::new(next));
}
