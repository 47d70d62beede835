//! The epoch ticker: a task that interrupts computing guests every 10 ms, and sleeps while none computes.
//!
//! It runs on the worker of the guests' runtime, on which no guest computes. It sleeps while guests wait, because an agent whose handlers
//! only listen must not wake the machine a hundred times a second.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::timeouts::EPOCH_TICK;

/// Increments the epoch while guests compute, and once after each of their polls, however short.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ticker(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    /// Number of guests that are being polled.
    computing: AtomicUsize,
    polled: Notify,
}

/// Marks a guest as being polled until it is dropped.
pub(crate) struct Computing<'a>(&'a Shared);

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        self.0.computing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ticker {
    /// Starts the task, which calls `tick` until that returns false or the runtime ends.
    pub(crate) fn start(runtime: &Handle, tick: impl Fn() -> bool + Send + 'static) -> Self {
        let ticker = Self::default();
        let shared = Arc::clone(&ticker.0);
        runtime.spawn(async move {
            while tick() {
                if shared.computing.load(Ordering::SeqCst) == 0 {
                    shared.polled.notified().await;
                }
                tokio::time::sleep(EPOCH_TICK).await;
            }
        });
        ticker
    }

    /// Advances the epoch regularly until the returned guard is dropped.
    pub(crate) fn compute(&self) -> Computing<'_> {
        self.0.computing.fetch_add(1, Ordering::SeqCst);
        self.0.polled.notify_one();
        Computing(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use tokio::time::{Duration, sleep};

    use super::*;

    /// Returns a ticker and the counter of its ticks.
    fn counted() -> (Ticker, Arc<AtomicU64>) {
        let ticks = Arc::new(AtomicU64::new(0));
        let counter = Arc::clone(&ticks);
        let tick = move || {
            counter.fetch_add(1, Ordering::SeqCst);
            true
        };
        (Ticker::start(&Handle::current(), tick), ticks)
    }

    #[tokio::test(start_paused = true)]
    async fn the_epoch_grows_while_a_guest_computes_and_stands_while_it_waits() {
        let (ticker, ticks) = counted();
        sleep(Duration::from_secs(1)).await;
        assert_eq!(ticks.load(Ordering::SeqCst), 1);
        let computes = ticker.compute();
        sleep(Duration::from_secs(1)).await;
        drop(computes);
        let before = ticks.load(Ordering::SeqCst);
        assert!((90..=110).contains(&before), "{before}");
        sleep(Duration::from_secs(1)).await;
        // One tick may be under way, and one follows the poll.
        assert!(ticks.load(Ordering::SeqCst) <= before + 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_tick_follows_every_poll_however_short() {
        let (ticker, ticks) = counted();
        for _ in 0..5 {
            sleep(Duration::from_secs(1)).await;
            let before = ticks.load(Ordering::SeqCst);
            drop(ticker.compute());
            sleep(2 * EPOCH_TICK).await;
            assert!(ticks.load(Ordering::SeqCst) > before);
        }
    }
}
