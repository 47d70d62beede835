//! Functions that wait for the stand-in: for conditions, with a paused clock, and from tests that are not async.

use std::future::Future;
use std::path::Path;

use anyhow::{Context, Result, bail};
use tokio::runtime::Runtime;

use super::{Kubelet, Plugins};
use crate::wait::TIMEOUT;

impl Kubelet {
    /// Waits until `check` succeeds on the stand-in, or fails with its last error. A paused clock does not advance meanwhile.
    pub async fn until<T>(
        &self,
        what: &str,
        mut check: impl FnMut(&Self) -> Result<T>,
    ) -> Result<T> {
        let mut changes = self.world.changes();
        let mut end = ClockHold::new();
        loop {
            changes.mark_unchanged();
            let error = match check(self) {
                Ok(found) => return Ok(found),
                Err(error) => error,
            };
            tokio::select! {
                told = changes.changed() => told?,
                () = end.over() => bail!("{what}: not within {TIMEOUT:?}: {error:#}"),
            }
        }
    }

    /// Waits until a resource has this capacity and allocatable.
    pub async fn until_capacity(
        &self,
        resource: &str,
        capacity: usize,
        allocatable: usize,
    ) -> Result<()> {
        self.until(
            &format!("{resource} counts {capacity}, {allocatable}"),
            |kubelet| match kubelet.capacity(resource) {
                Some(now) if now == (capacity, allocatable) => Ok(()),
                now => bail!("it counts {now:?}"),
            },
        )
        .await
    }
}

/// Keeps a paused clock from advancing while all tasks wait, so that data over a socket takes no time. Dropping it ends that.
#[derive(Debug)]
pub struct ClockHold {
    _end: std::sync::mpsc::Sender<()>,
    timer: tokio::task::JoinHandle<()>,
}

impl ClockHold {
    /// Holds the clock for at most a minute of real time.
    #[expect(clippy::new_without_default, reason = "it does something")]
    pub fn new() -> Self {
        let (end, wait) = std::sync::mpsc::channel();
        // The clock of tokio does not advance while a blocking task runs.
        let timer = tokio::task::spawn_blocking(move || {
            let _ = wait.recv_timeout(TIMEOUT);
        });
        Self { _end: end, timer }
    }

    async fn over(&mut self) {
        // The task cannot panic, and nothing aborts it.
        drop((&mut self.timer).await);
    }
}

/// Stand-in with a runtime of its own, for tests that are not async.
#[derive(Debug)]
pub struct Blocking {
    kubelet: Kubelet,
    runtime: Runtime,
}

impl Blocking {
    /// Starts a kubelet in a folder of its own.
    pub fn start(root: &Path) -> Result<Self> {
        Self::start_knowing(root, Plugins::default())
    }

    /// Starts a kubelet in a folder of its own with this rule for plugins.
    pub fn start_knowing(root: &Path, plugins: Plugins) -> Result<Self> {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .context("cannot start a runtime")?;
        let kubelet = Kubelet::new(root);
        kubelet.know(plugins);
        runtime.block_on(kubelet.start())?;
        Ok(Self { kubelet, runtime })
    }

    /// Waits for a future of the stand-in: `kubelet.wait(kubelet.run_pod(&spec))`. Not from async code.
    pub fn wait<F: Future>(&self, doing: F) -> F::Output {
        self.runtime.block_on(doing)
    }

    /// Runs a future beside the test, which [`Self::wait`]s for its end.
    pub fn spawn<F>(&self, doing: F) -> tokio::task::JoinHandle<F::Output>
    where
        F: Future<Output: Send> + Send + 'static,
    {
        self.runtime.spawn(doing)
    }
}

impl std::ops::Deref for Blocking {
    type Target = Kubelet;

    fn deref(&self) -> &Kubelet {
        &self.kubelet
    }
}
