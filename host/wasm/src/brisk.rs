//! Which handlers' calls begin on the thread that asks for them, and end there if they do not have to wait.
//!
//! Waking a thread of the guests costs more than most calls. But a guest that computes on a thread of the agent's holds up what waits
//! there until the next tick: only a handler whose calls have all been short for a while is trusted with that, one at a time, and
//! not again soon if it was not worth it.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::runtime::Handle;

/// The most computing of a short call.
const SHORT: Duration = Duration::from_millis(1);
/// How many short calls in a row make a handler trusted.
const IN_A_ROW: u8 = 32;

/// How many calls in a row were short.
#[derive(Debug, Default)]
pub(crate) struct Brisk(AtomicU8);

impl Brisk {
    /// Whether the next call may begin where it is asked for.
    pub(crate) fn is_trusted(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= IN_A_ROW
    }

    /// A call computed for so long, up to its end or while it was on the agent's thread.
    pub(crate) fn computed(&self, computed: Duration) {
        if computed > SHORT {
            self.0.store(0, Ordering::Relaxed);
        } else if !self.is_trusted() {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Polls a call once, here, as if on `guests`: whatever it begins to wait for belongs to that runtime, on which it is to be polled
/// again.
///
/// # Errors
/// It panicked.
pub(crate) fn begin<F: Future>(
    guests: &Handle,
    call: Pin<&mut F>,
) -> std::thread::Result<Poll<F::Output>> {
    let _context = guests.enter();
    catch_unwind(AssertUnwindSafe(|| {
        call.poll(&mut Context::from_waker(Waker::noop()))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handler_is_trusted_after_short_calls_in_a_row_and_until_a_long_one() {
        let brisk = Brisk::default();
        for _ in 1..IN_A_ROW {
            brisk.computed(SHORT);
        }
        assert!(!brisk.is_trusted());
        for _ in 0..1000 {
            brisk.computed(Duration::ZERO);
        }
        assert!(brisk.is_trusted());
        brisk.computed(SHORT + Duration::from_nanos(1));
        assert!(!brisk.is_trusted());
        brisk.computed(SHORT);
        assert!(!brisk.is_trusted());
    }

    #[test]
    fn what_waits_goes_on_elsewhere_and_what_does_not_has_ended() {
        let guests = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let handle = guests.handle();
        let mut ready = Box::pin(async { 1 });
        assert!(matches!(begin(handle, ready.as_mut()), Ok(Poll::Ready(1))));
        let mut waits = Box::pin(async {
            tokio::time::sleep(Duration::from_millis(1)).await;
            2
        });
        assert!(matches!(begin(handle, waits.as_mut()), Ok(Poll::Pending)));
        assert_eq!(guests.block_on(guests.spawn(waits)).unwrap(), 2);
        let mut fails = Box::pin(async { panic!("on purpose") });
        assert!(begin(handle, fails.as_mut()).is_err());
    }
}
