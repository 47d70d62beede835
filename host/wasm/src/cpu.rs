//! Measures the CPU time of a call: the thread's CPU time while its future is polled.
//!
//! Epoch ticks alone would bill a guest for the time in which the kernel let others run.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::ticker::Ticker;

/// CPU time of one call.
#[derive(Debug, Default)]
pub(crate) struct CpuMeter {
    /// Nanoseconds of finished polls.
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

    /// Returns the CPU time up to the end of the last poll.
    pub(crate) fn used(&self) -> Duration {
        Duration::from_nanos(self.used.load(Ordering::Relaxed))
    }

    /// Returns the CPU time including the current poll; call it on the polling thread.
    pub(crate) fn used_within_poll(&self) -> Duration {
        let running = thread_nanos().saturating_sub(self.since.load(Ordering::Relaxed));
        self.used() + Duration::from_nanos(running)
    }
}

/// Future whose CPU time is measured, and during whose polls the epoch ticks.
pub(crate) struct Metered<F> {
    meter: Arc<CpuMeter>,
    ticker: Ticker,
    future: Pin<Box<F>>,
}

impl<F: Future> Metered<F> {
    /// Measures `future` on `meter`.
    pub(crate) fn new(meter: Arc<CpuMeter>, ticker: Ticker, future: F) -> Self {
        Self {
            meter,
            ticker,
            future: Box::pin(future),
        }
    }
}

impl<F: Future> Future for Metered<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let ticker = self.ticker.clone();
        let _computing = ticker.compute();
        let begin = thread_nanos();
        self.meter.since.store(begin, Ordering::Relaxed);
        let poll = self.future.as_mut().poll(context);
        let took = thread_nanos().saturating_sub(begin);
        self.meter.used.fetch_add(took, Ordering::Relaxed);
        poll
    }
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
        let meter = Arc::new(CpuMeter::default());
        let ticker = Ticker::default();
        let sleep = tokio::time::sleep(Duration::from_millis(400));
        Metered::new(meter.clone(), ticker.clone(), sleep).await;
        assert!(meter.used() < Duration::from_millis(200), "{meter:?}");
        Metered::new(meter.clone(), ticker.clone(), async {
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
