//! The epoch ticker: an OS thread that interrupts computing guests every 10 ms, and sleeps when none computes.
//!
//! A thread of its own, because a task would starve together with the guests it is to interrupt; asleep while guests wait,
//! because an agent whose handlers listen must not wake the machine a hundred times a second.

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;

use wasmtime::Engine;

use crate::timeouts::EPOCH_TICK;

/// Ticks while a [`Ticked`] future is polled, and once after; stops when dropped.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    /// Futures that are polled now.
    computing: AtomicUsize,
    /// One was polled since the last tick began. However short its polls are, a tick follows each of them: that is when
    /// what it computed in all is looked at.
    due: AtomicBool,
    /// No tick is waited for.
    parked: AtomicBool,
    /// How many there were.
    ticks: AtomicU64,
    stopped: Mutex<bool>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_due(&self) -> bool {
        self.due.swap(false, Ordering::SeqCst) || self.computing.load(Ordering::SeqCst) > 0
    }

    /// Waits for the next tick; false means that the ticker has stopped.
    fn wait(&self) -> bool {
        let mut stopped = self.lock();
        // Said before it is looked: whoever begins after the look sees that it has to wake this thread.
        self.parked.store(true, Ordering::SeqCst);
        while !*stopped && !self.is_due() {
            stopped = self
                .changed
                .wait(stopped)
                .unwrap_or_else(PoisonError::into_inner);
        }
        self.parked.store(false, Ordering::SeqCst);
        let (stopped, _) = self
            .changed
            .wait_timeout_while(stopped, EPOCH_TICK, |stopped| !*stopped)
            .unwrap_or_else(PoisonError::into_inner);
        self.ticks.fetch_add(1, Ordering::Relaxed);
        !*stopped
    }

    /// A guest computes from now on, until the answer is dropped.
    fn compute(&self) -> Computing<'_> {
        self.computing.fetch_add(1, Ordering::SeqCst);
        self.due.store(true, Ordering::SeqCst);
        if self.parked.load(Ordering::SeqCst) {
            // Once it is had, the thread waits.
            drop(self.lock());
            self.changed.notify_all();
        }
        Computing(self)
    }
}

struct Computing<'a>(&'a Shared);

impl Drop for Computing<'_> {
    fn drop(&mut self) {
        self.0.computing.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Ticker {
    /// Starts the thread.
    pub(crate) fn start(engine: &Engine) -> std::io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let (ticks, engine) = (shared.clone(), engine.weak());
        let thread = std::thread::Builder::new()
            .name("epoch".to_owned())
            .spawn(move || {
                while ticks.wait() {
                    let Some(engine) = engine.upgrade() else {
                        break;
                    };
                    engine.increment_epoch();
                }
            })?;
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Has ticks come while `future` is polled.
    pub(crate) fn tick<F: Future>(&self, future: F) -> Ticked<F> {
        Ticked {
            shared: self.shared.clone(),
            future: Box::pin(future),
        }
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        *self.shared.lock() = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A future during whose polls the ticker ticks.
pub(crate) struct Ticked<F> {
    shared: Arc<Shared>,
    future: Pin<Box<F>>,
}

impl<F: Future> Future for Ticked<F> {
    type Output = F::Output;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<F::Output> {
        let this = self.get_mut();
        let _computing = this.shared.compute();
        this.future.as_mut().poll(context)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;
    use std::time::{Duration, Instant};

    use super::*;

    /// Waits until `done`, at most ten seconds.
    fn eventually(mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(10), "not in time");
            std::thread::yield_now();
        }
    }

    fn ticks(ticker: &Ticker) -> u64 {
        ticker.shared.ticks.load(Ordering::Relaxed)
    }

    fn is_parked(ticker: &Ticker) -> bool {
        // While it is about to wait, it has the lock.
        let _stopped = ticker.shared.lock();
        ticker.shared.parked.load(Ordering::SeqCst) && !ticker.shared.due.load(Ordering::SeqCst)
    }

    fn poll_once<F: Future>(ticked: &mut Ticked<F>) -> Poll<F::Output> {
        Pin::new(ticked).poll(&mut Context::from_waker(std::task::Waker::noop()))
    }

    #[test]
    fn the_epoch_grows_while_a_guest_computes_and_stands_while_it_waits() {
        let engine = crate::engine::engine().unwrap();
        let ticker = Ticker::start(&engine).unwrap();
        eventually(|| is_parked(&ticker));
        assert_eq!(ticks(&ticker), 0);
        let mut computes = ticker.tick(async { eventually(|| ticks(&ticker) >= 3) });
        assert!(poll_once(&mut computes).is_ready());
        let mut waits = ticker.tick(pending::<()>());
        assert!(poll_once(&mut waits).is_pending());
        // One tick may be under way, and one follows the poll.
        eventually(|| is_parked(&ticker));
        let after = ticks(&ticker);
        assert!((3..=6).contains(&after), "{after}");
        assert!(is_parked(&ticker), "it is only waited");
        assert_eq!(ticks(&ticker), after);
    }

    #[test]
    fn a_tick_follows_every_poll_however_short() {
        let engine = crate::engine::engine().unwrap();
        let ticker = Ticker::start(&engine).unwrap();
        let mut naps = ticker.tick(pending::<()>());
        for _ in 0..5 {
            eventually(|| is_parked(&ticker));
            let before = ticks(&ticker);
            assert!(poll_once(&mut naps).is_pending());
            eventually(|| ticks(&ticker) > before);
        }
    }

    #[test]
    fn the_thread_ends_with_the_ticker() {
        let engine = crate::engine::engine().unwrap();
        let ticker = Ticker::start(&engine).unwrap();
        let waits = ticker.tick(pending::<()>());
        let shared = Arc::downgrade(&ticker.shared);
        let thread = ticker.thread.as_ref().unwrap().thread().id();
        drop(ticker);
        assert_ne!(thread, std::thread::current().id());
        // What is left is held by the future alone: the thread has given up its part.
        assert_eq!(shared.strong_count(), 1);
        drop(waits);
    }
}
