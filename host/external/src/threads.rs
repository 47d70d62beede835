//! Threads for work that blocks and may never end: the check of a path hangs if its file system does. Each source of a handler has only a
//! few, so a hanging source delays no other, and none of them is one of the agent's own blocking threads.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;

use tokio::sync::{Semaphore, oneshot};

use crate::registrations::MOST;

/// Maximum number of threads per source: while one hangs, the other shows whether the file system answers again.
const OF_SOURCE: usize = 2;
/// Maximum number of threads of all sources. Sources come and go, but a hanging thread stays.
const OF_ALL: usize = MOST * OF_SOURCE;
/// Stack size of a thread, in bytes: a set of devices is decoded and checked on it.
const STACK: usize = 1 << 20;

/// Threads of all sources.
#[derive(Debug)]
pub struct Threads {
    all: Arc<Semaphore>,
    /// Semaphores by source, while a quota exists or work of the source still runs.
    sources: Mutex<BTreeMap<String, Weak<Semaphore>>>,
}

impl Default for Threads {
    fn default() -> Self {
        Self {
            all: Arc::new(Semaphore::new(OF_ALL)),
            sources: Mutex::default(),
        }
    }
}

impl Threads {
    /// Returns the threads of a source; loading the source again returns the same ones.
    pub fn of(&self, source: &str) -> Quota {
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|_, one| one.strong_count() > 0);
        let known = sources.get(source).and_then(Weak::upgrade);
        let own = known.unwrap_or_else(|| Arc::new(Semaphore::new(OF_SOURCE)));
        sources.insert(source.to_owned(), Arc::downgrade(&own));
        Quota {
            own,
            all: Arc::clone(&self.all),
        }
    }
}

/// Threads of one source.
#[derive(Debug, Clone)]
pub struct Quota {
    own: Arc<Semaphore>,
    all: Arc<Semaphore>,
}

impl Quota {
    /// Runs the work on a thread of its own as soon as one is free. Work that has begun occupies its thread until it ends, even if the caller
    /// no longer waits.
    ///
    /// # Errors
    /// Returns the reason if no thread can be started or the work panicked.
    pub async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, String> {
        // Neither semaphore is ever closed.
        let own = Arc::clone(&self.own).acquire_owned().await;
        let all = Arc::clone(&self.all).acquire_owned().await;
        let (done, result) = oneshot::channel();
        let run = move || {
            // A panic releases both permits, too.
            let (_own, _all) = (own, all);
            // The receiver may be gone.
            drop(done.send(work()));
        };
        let thread = thread::Builder::new()
            .name("external".to_owned())
            .stack_size(STACK);
        let started: io::Result<_> = thread.spawn(run);
        started.map_err(|error| {
            format!(
                "no thread can be started ({error}); raise the number of processes the agent may have (TasksMax, pids, ulimit -u)"
            )
        })?;
        let result = result.await;
        result.map_err(|_| "the agent failed; this is a bug, see the log".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn what_hangs_for_one_source_holds_up_no_other_and_is_not_forgotten() {
        let threads = Threads::default();
        let (mut hanging, mut ends) = (Vec::new(), Vec::new());
        for _ in 0..OF_SOURCE {
            let (begun, has_begun) = oneshot::channel();
            let (end, ended) = mpsc::channel::<()>();
            let quota = threads.of("a");
            hanging.push(tokio::spawn(async move {
                let work = move || {
                    begun.send(()).unwrap();
                    ended.recv().unwrap_err();
                };
                quota.run(work).await
            }));
            has_begun.await.unwrap();
            ends.push(end);
        }
        for hangs in &hanging {
            hangs.abort();
        }
        let again = threads.of("a");
        let mut third = Box::pin(again.run(|| 3));
        assert!(third.as_mut().now_or_never().is_none());
        assert_eq!(threads.of("b").run(|| 1).await, Ok(1));
        drop(ends);
        assert_eq!(third.await, Ok(3));
    }

    #[tokio::test]
    async fn work_that_panics_is_an_error_and_gives_its_place_back() {
        let threads = Threads::default();
        for _ in 0..=OF_ALL {
            let why = threads.of("a").run(|| std::panic::panic_any(1)).await;
            assert!(why.unwrap_err().contains("a bug"));
        }
        assert_eq!(threads.of("a").run(|| 2).await, Ok(2));
    }
}
