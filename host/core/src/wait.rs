//! Helpers for waiting on optional deadlines and for watches, and the error of a watch whose sender is gone.

use tokio::sync::watch;
use tokio::time::Instant;

/// Error of a task that ended by itself, because the watch it follows is no longer published.
#[derive(Debug, thiserror::Error)]
#[error("the source of {0} has ended")]
pub struct SourceEnded(pub &'static str);

/// Waits for a change. Waits forever once the sender is gone: the owner of its task decides what follows.
pub async fn changed<T>(receiver: &mut watch::Receiver<T>) {
    if receiver.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}

/// Returns true if a change waits to be seen. A task polls `changed` first, but tokio may let it wait although there is a change.
pub fn is_outdated<T>(receiver: &watch::Receiver<T>) -> bool {
    receiver.has_changed().unwrap_or(false)
}

/// Sleeps until `then`; waits forever if it is `None`.
pub async fn until(then: Option<Instant>) {
    match then {
        Some(then) => tokio::time::sleep_until(then).await,
        None => std::future::pending().await,
    }
}

/// Publishes `next` if it differs from the published value. Returns true if it does.
pub fn publish<T: PartialEq>(sender: &watch::Sender<T>, next: T) -> bool {
    sender.send_if_modified(|published| {
        let differs = *published != next;
        if differs {
            *published = next;
        }
        differs
    })
}
