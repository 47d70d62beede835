//! Helpers of tasks that publish and follow watches and wait for optional deadlines.

use tokio::sync::watch;
use tokio::time::Instant;

/// Error of a task that ended by itself, because the watch it follows is no longer published.
#[derive(Debug, thiserror::Error)]
#[error("the source of {0} has ended")]
pub struct SourceEnded(pub &'static str);

/// Sleeps until `then`; waits forever if it is `None`.
pub async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// Waits for a change. Waits forever once the sender is gone: the owner of its task decides what follows.
pub async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Publishes a value if it differs from the published one; returns true if it does.
pub fn publish<T: PartialEq>(sender: &watch::Sender<T>, next: T) -> bool {
    sender.send_if_modified(|held| {
        let differs = *held != next;
        if differs {
            *held = next;
        }
        differs
    })
}
