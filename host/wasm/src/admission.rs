//! Admission of calls: a quota for each handler, and one for all handlers together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Maximum number of concurrent calls per handler; further calls wait.
pub(crate) const OF_HANDLER: usize = 4;
/// Maximum number of concurrent calls of all handlers together, in addition to one per handler; further calls wait.
const OF_ALL: usize = 12;

#[derive(Debug)]
pub(crate) struct HandlerQuota {
    calls: Arc<Semaphore>,
    /// Permit for one call at a time, not shared, so that the calls of other handlers cannot block this handler.
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

/// Creates the permits that all handlers share.
pub(crate) fn shared() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(OF_ALL))
}

/// Permits of an admitted call; released on drop.
pub(crate) type Admitted = [Option<OwnedSemaphorePermit>; 2];

impl HandlerQuota {
    /// Creates the quota of a new handler, which uses the permits of [`shared`], too.
    pub(crate) fn new(shared: &Arc<Semaphore>) -> Self {
        Self {
            calls: Arc::new(Semaphore::new(OF_HANDLER)),
            own: Arc::new(Semaphore::new(1)),
            shared: Arc::clone(shared),
        }
    }

    /// Waits until a call may run.
    pub(crate) async fn admit(&self) -> Admitted {
        // The semaphores are never closed.
        let call = Arc::clone(&self.calls).acquire_owned().await;
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&self.own).acquire_owned() => permit,
            permit = Arc::clone(&self.shared).acquire_owned() => permit,
        };
        [call.ok(), permit.ok()]
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn now(quota: &HandlerQuota) -> Option<Admitted> {
        match pin!(quota.admit()).poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(admitted) => Some(admitted),
            Poll::Pending => None,
        }
    }

    fn as_many_as_may(quota: &HandlerQuota) -> Vec<Admitted> {
        std::iter::from_fn(|| now(quota)).collect()
    }

    #[test]
    fn a_handler_is_admitted_once_whatever_others_do() {
        let shared = shared();
        let busy: Vec<_> = (0..4).map(|_| HandlerQuota::new(&shared)).collect();
        let mut running: Vec<_> = busy.iter().map(as_many_as_may).collect();
        let counts: Vec<_> = running.iter().map(Vec::len).collect();
        assert_eq!(counts, [4, 4, 4, 4]);
        let other = HandlerQuota::new(&shared);
        let first = now(&other);
        assert!(first.is_some());
        assert!(now(&other).is_none(), "the shared permits are in use");
        running.clear();
        assert_eq!(as_many_as_may(&other).len(), 3);
        drop(first);
        assert_eq!(as_many_as_may(&other).len(), 4);
    }
}
