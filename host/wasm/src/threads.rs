//! Threads for guests and for blocking work that may never end. Does not know the guest.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use tokio::runtime::{Handle, Runtime};
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::engine::GUESTS;
use crate::timeouts::GUEST_THREAD_KEEP_ALIVE;

/// Maximum number of threads for blocking work of guests: lookups of names and requests to sysfs. If a driver hangs, some of that work
/// never ends.
const WORK: usize = 256;
/// Increment of the nice value (`nice(2)`) of guests over the agent's own threads.
const NICER: i32 = 5;
/// Remedy if no thread can be started.
pub const MORE_THREADS: &str =
    "raise the number of processes the agent may have (TasksMax, pids, ulimit -u)";

/// Threads of the guests. Each call holds a reference: without the runtime, timers and sockets of its guest would fail.
#[derive(Debug)]
pub(crate) struct Threads {
    pub(crate) guests: Handle,
    /// Runtime whose single worker drives timers and sockets; guests run on its blocking threads. `None` once this value is dropped.
    runtime: Option<Runtime>,
}

impl Threads {
    /// Starts the runtime; each call starts a thread if none is free.
    pub(crate) fn start() -> std::io::Result<Self> {
        let own = rustix::process::getpriority_process(None)?;
        let nicer = own.saturating_add(NICER).min(19);
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .max_blocking_threads(usize::from(GUESTS) + WORK)
            .thread_keep_alive(GUEST_THREAD_KEEP_ALIVE)
            .thread_name("guest")
            .on_thread_start(move || {
                // An absolute value, because a thread inherits the nice value of its creator.
                if let Err(error) = rustix::process::setpriority_process(None, nicer) {
                    tracing::debug!(%error, "the priority of a guest's thread was not lowered");
                }
            })
            .enable_all()
            .build()?;
        Ok(Self {
            guests: runtime.handle().clone(),
            runtime: Some(runtime),
        })
    }

    /// Uses the runtime of the running test: its paused clock waits for blocking work.
    #[cfg(test)]
    pub(crate) fn of_the_test() -> Self {
        Self {
            guests: Handle::current(),
            runtime: None,
        }
    }

    /// Runs a call on a thread of its own. Dropping the future ends the call.
    ///
    /// # Errors
    /// Returns the reason if no thread can be started or the call panicked.
    pub(crate) async fn run<T: Send + 'static>(
        self: &Arc<Self>,
        call: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, String> {
        let kept = Arc::clone(self);
        let stop = CancellationToken::new();
        let _end = stop.clone().drop_guard();
        let run = move || {
            // A stopped call is not polled again.
            kept.guests.block_on(async {
                tokio::select! {
                    biased;
                    () = stop.cancelled() => None,
                    ended = call => Some(ended),
                }
            })
        };
        let thread = self.spawn(run)?;
        let failed = |error| format!("the agent failed while it ran the guest: {error}");
        let ended = thread.await.map_err(failed)?;
        ended.ok_or_else(|| "the call was cancelled".to_owned())
    }

    fn spawn<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<JoinHandle<T>, String> {
        // tokio panics if no thread can be started.
        let thread = catch_unwind(AssertUnwindSafe(|| self.guests.spawn_blocking(work)));
        thread.map_err(|_| format!("no thread can be started for the guest; {MORE_THREADS}"))
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        // Blocking is not allowed in an async context, and not needed: the last guest has ended.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Limits the concurrent blocking work of a handler, which may never end.
#[derive(Debug, Clone)]
pub(crate) struct BlockingQuota {
    threads: Arc<Threads>,
    permits: Arc<Semaphore>,
}

impl BlockingQuota {
    /// Creates a quota of `at_once` concurrent pieces of work.
    pub(crate) fn new(threads: &Arc<Threads>, at_once: usize) -> Self {
        Self {
            threads: Arc::clone(threads),
            permits: Arc::new(Semaphore::new(at_once)),
        }
    }

    /// Runs the work once a permit is free. Work that has begun keeps its permit until it ends, even if the caller no longer waits.
    ///
    /// # Errors
    /// Returns the reason if no thread can be started or the work panicked.
    pub(crate) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        let permit = Arc::clone(&self.permits).acquire_owned().await;
        let work = move || {
            let _permit = permit;
            work()
        };
        let done = self.threads.spawn(work)?.await;
        done.map_err(|error| format!("the agent failed: {error}"))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[tokio::test]
    async fn what_hangs_for_one_handler_holds_up_no_other() {
        let threads = Arc::new(Threads::start().unwrap());
        let (one, other) = (
            BlockingQuota::new(&threads, 2),
            BlockingQuota::new(&threads, 2),
        );
        let mut hanging = Vec::new();
        for _ in 0..2 {
            let (begun, has_begun) = channel();
            let (end, ended) = channel::<()>();
            let one = one.clone();
            let hangs = tokio::spawn(async move {
                one.run(move || {
                    begun.send(()).unwrap();
                    ended.recv().unwrap_err();
                })
                .await
            });
            let begins = move || has_begun.recv();
            tokio::task::spawn_blocking(begins).await.unwrap().unwrap();
            hanging.push((hangs, end));
        }
        let mut third = Box::pin(one.run(|| 3));
        let waits = third.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(matches!(waits, Poll::Pending));
        assert_eq!(other.run(|| 1).await, Ok(1));
        for (hangs, end) in hanging {
            // The caller of the work is gone, but the work still holds its permit.
            hangs.abort();
            drop(end);
        }
        assert_eq!(third.await, Ok(3));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_returns_its_permit() {
        let threads = Arc::new(Threads::start().unwrap());
        let quota = BlockingQuota::new(&threads, 1);
        let why = quota.run(|| std::panic::panic_any(1)).await.unwrap_err();
        assert!(why.contains("panicked"), "{why}");
        assert_eq!(quota.run(|| 2).await, Ok(2));
    }
}
