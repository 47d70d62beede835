//! Which calls may run now: a quota for each handler, and one for all handlers together.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many calls of one handler run at once; more wait.
pub(crate) const OF_HANDLER: usize = 4;
/// How many calls of all handlers run at once besides one of each handler; more wait.
const OF_ALL: usize = 12;

/// Admits calls of all handlers.
#[derive(Debug, Clone)]
pub(crate) struct Admission {
    shared: Arc<Semaphore>,
}

impl Default for Admission {
    fn default() -> Self {
        let shared = Arc::new(Semaphore::new(OF_ALL));
        Self { shared }
    }
}

impl Admission {
    /// The quota of a new handler.
    pub(crate) fn of_handler(&self) -> HandlerQuota {
        HandlerQuota {
            calls: Arc::new(Semaphore::new(OF_HANDLER)),
            own: Arc::new(Semaphore::new(1)),
            shared: Arc::clone(&self.shared),
        }
    }
}

/// Admits calls of one handler.
#[derive(Debug)]
pub(crate) struct HandlerQuota {
    calls: Arc<Semaphore>,
    /// One call at a time needs none of the shared permits, so that no other handler's calls can keep this handler waiting.
    own: Arc<Semaphore>,
    shared: Arc<Semaphore>,
}

/// A call that may run. It counts until this is dropped.
#[derive(Debug)]
pub(crate) struct Admitted {
    _call: Option<OwnedSemaphorePermit>,
    _permit: Option<OwnedSemaphorePermit>,
}

impl HandlerQuota {
    /// Waits until a call may run.
    pub(crate) async fn admit(&self) -> Admitted {
        // They are never closed.
        let call = Arc::clone(&self.calls).acquire_owned().await;
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(&self.own).acquire_owned() => permit,
            permit = Arc::clone(&self.shared).acquire_owned() => permit,
        };
        Admitted {
            _call: call.ok(),
            _permit: permit.ok(),
        }
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
        let admission = Admission::default();
        let busy: Vec<_> = (0..4).map(|_| admission.of_handler()).collect();
        let mut running: Vec<_> = busy.iter().map(as_many_as_may).collect();
        let counts: Vec<_> = running.iter().map(Vec::len).collect();
        assert_eq!(counts, [4, 4, 4, 4]);
        let other = admission.of_handler();
        let first = now(&other);
        assert!(first.is_some());
        assert!(now(&other).is_none(), "the shared permits are in use");
        running.clear();
        assert_eq!(as_many_as_may(&other).len(), 3);
        drop(first);
        assert_eq!(as_many_as_may(&other).len(), 4);
    }
}
