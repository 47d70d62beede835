//! Runs futures on the component's only thread. The platform provides what they wait for.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use futures_util::future::{Either, select};

use super::Imports;

/// Waker that sets a flag when the future may be polled again.
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Polls the future each time it is woken, and parks in between.
pub(crate) fn block_on<F: Future>(imports: &Imports, work: F) -> F::Output {
    let mut work = pin!(work);
    let woken = Arc::new(Woken(AtomicBool::new(true)));
    let waker = Waker::from(Arc::clone(&woken));
    let mut context = Context::from_waker(&waker);
    loop {
        while woken.0.swap(false, Ordering::Relaxed) {
            if let Poll::Ready(output) = work.as_mut().poll(&mut context) {
                return output;
            }
        }
        imports.park();
    }
}

/// Returns the output of `work`, or `None` if `limit` completes first.
pub(crate) async fn unless<T>(
    limit: impl Future<Output = ()>,
    work: impl Future<Output = T>,
) -> Option<T> {
    match select(pin!(work), pin!(limit)).await {
        Either::Left((output, _)) => Some(output),
        Either::Right(_) => None,
    }
}

#[cfg(test)]
mod tests;
