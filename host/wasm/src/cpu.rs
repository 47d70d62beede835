//! Measures the CPU time of a call: the thread's CPU time while its future is polled.
//!
//! Epoch ticks alone would bill a guest for the time in which the kernel let others run.

use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::ticker::Ticker;

/// CPU time of one call.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    /// Nanoseconds of finished polls and of finished blocking work.
    used: AtomicU64,
    /// CPU clock of the thread at the start of the current poll.
    since: AtomicU64,
}

impl CpuMeter {
    /// Runs blocking work for the guest and adds its CPU time.
    pub(crate) fn bill<T>(&self, work: impl FnOnce() -> T) -> T {
        let begin = thread_nanos();
        let done = work();
        let took = thread_nanos().saturating_sub(begin);
        self.used.fetch_add(took, Ordering::Relaxed);
        done
    }

    /// Returns the CPU time of finished polls and of finished blocking work.
    pub(crate) fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(Ordering::Relaxed))
    }

    /// Returns the CPU time including the current poll; call it on the polling thread.
    pub(crate) fn used_within_poll(&self) -> Duration {
        let running = thread_nanos().saturating_sub(self.since.load(Ordering::Relaxed));
        self.used() + Duration::from_nanos(running)
    }
}

/// Runs the future; measures the CPU time of its polls on `meter`, and lets the epoch tick during them.
pub(crate) async fn metered<F: Future>(meter: &CpuMeter, ticker: &Ticker, future: F) -> F::Output {
    let mut future = Box::pin(future);
    poll_fn(|context| {
        let _computing = ticker.compute();
        meter.since.store(thread_nanos(), Ordering::Relaxed);
        meter.bill(|| future.as_mut().poll(context))
    })
    .await
}

/// Returns the CPU time of this thread, or 0 if the kernel does not report it; then nothing is billed.
pub(crate) fn thread_time() -> Duration {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

fn thread_nanos() -> u64 {
    u64::try_from(thread_time().as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_costs_nothing_and_computing_does() {
        let meter = CpuMeter::default();
        let ticker = Ticker::default();
        let sleep = tokio::time::sleep(Duration::from_millis(400));
        metered(&meter, &ticker, sleep).await;
        assert!(meter.used() < Duration::from_millis(200), "{meter:?}");
        metered(&meter, &ticker, async {
            let begin = thread_nanos();
            while thread_nanos() - begin < 60_000_000 {}
            assert!(meter.used_within_poll() >= Duration::from_millis(60));
        })
        .await;
        assert!(meter.used() >= Duration::from_millis(60), "{meter:?}");
        meter.bill(|| {
            let begin = thread_nanos();
            while thread_nanos() - begin < 60_000_000 {}
        });
        assert!(meter.used() >= Duration::from_millis(120), "{meter:?}");
    }
}
