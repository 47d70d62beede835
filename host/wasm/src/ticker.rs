//! The epoch ticker: an OS thread that interrupts running guests every 10 ms, and sleeps when none runs.
//!
//! A thread of its own, because a task would starve together with the guests it is to interrupt; asleep without
//! guests, because an idle agent must not wake the machine a hundred times a second.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use wasmtime::Engine;

/// The time between two ticks.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// Ticks while a [`Running`] exists; stops when dropped.
#[derive(Debug)]
pub(crate) struct Ticker {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    running: usize,
    stopped: bool,
    /// No tick is waited for.
    parked: bool,
    /// How many there were.
    ticks: u64,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the next tick; false means that the ticker has stopped.
    fn wait(&self) -> bool {
        let mut state = self.lock();
        while state.running == 0 && !state.stopped {
            state.parked = true;
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.parked = false;
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, TICK, |state| !state.stopped)
            .unwrap_or_else(PoisonError::into_inner);
        state.ticks += 1;
        !state.stopped
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

    /// Keeps the ticks coming until the answer is dropped.
    pub(crate) fn run(&self) -> Running {
        self.shared.lock().running += 1;
        self.shared.changed.notify_all();
        Running(self.shared.clone())
    }
}

impl Drop for Ticker {
    fn drop(&mut self) {
        self.shared.lock().stopped = true;
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A guest runs.
#[derive(Debug)]
pub(crate) struct Running(Arc<Shared>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    /// Waits until `done`, at most ten seconds.
    fn eventually(mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < Duration::from_secs(10), "not in time");
            std::thread::yield_now();
        }
    }

    #[test]
    fn the_epoch_grows_only_while_a_guest_runs() {
        let engine = crate::engine::engine().unwrap();
        let ticker = Ticker::start(&engine).unwrap();
        let wakes = |ticker: &Ticker| ticker.shared.lock().ticks;
        assert_eq!(wakes(&ticker), 0);
        let running = ticker.run();
        eventually(|| wakes(&ticker) >= 3);
        drop(running);
        // One tick may be under way.
        let after = wakes(&ticker) + 1;
        eventually(|| ticker.shared.lock().parked);
        assert!(wakes(&ticker) <= after);
    }

    #[test]
    fn the_thread_ends_with_the_ticker() {
        let engine = crate::engine::engine().unwrap();
        let ticker = Ticker::start(&engine).unwrap();
        let _running = ticker.run();
        let shared = Arc::downgrade(&ticker.shared);
        let thread = ticker.thread.as_ref().unwrap().thread().id();
        drop(ticker);
        assert_ne!(thread, std::thread::current().id());
        // What is left is held by `_running` alone: the thread has given up its part.
        assert_eq!(shared.strong_count(), 1);
    }
}
