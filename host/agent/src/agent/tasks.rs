//! Tasks by name: every one is joined, and its end is a decision.

use std::collections::HashMap;
use std::pin::Pin;

use leafhost_core::timeouts;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::Error;

/// Why a task ended.
type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What a task returns: nothing, or a result.
pub(super) trait Outcome {
    fn into_result(self) -> Result<(), Cause>;
}

impl Outcome for () {
    fn into_result(self) -> Result<(), Cause> {
        Ok(())
    }
}

impl<E: Into<Cause>> Outcome for Result<(), E> {
    fn into_result(self) -> Result<(), Cause> {
        self.map_err(Into::into)
    }
}

/// Tasks that run until `stop` is cancelled.
#[derive(Default)]
pub(super) struct Tasks {
    pub stop: CancellationToken,
    pending: Vec<(&'static str, BoxFuture<Result<(), Cause>>)>,
    set: JoinSet<Result<(), Cause>>,
    names: HashMap<Id, &'static str>,
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

impl Tasks {
    /// Adds a task that [`Self::run`] starts.
    pub fn add<T: Outcome>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        let task = async move { task.await.into_result() };
        self.pending.push((name, Box::pin(task)));
    }

    /// Adds a task that ends when [`Self::run`] is to stop, wherever it is.
    pub fn add_loop(
        &mut self,
        name: &'static str,
        task: impl Future<Output = ()> + Send + 'static,
    ) {
        let stop = self.stop.clone();
        self.add(name, async move {
            stop.run_until_cancelled(task).await;
        });
    }

    /// Runs all tasks until `shutdown`, and waits for every one. The first one that ends by itself ends all.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        for (name, task) in std::mem::take(&mut self.pending) {
            self.names.insert(self.set.spawn(task).id(), name);
        }
        let first = tokio::select! {
            biased;
            () = shutdown.cancelled() => None,
            Some(ended) = self.set.join_next_with_id() => self.failure(ended, true),
        };
        self.stop.cancel();
        let drained = tokio::time::timeout(timeouts::DRAIN, async {
            let mut later = None;
            while let Some(ended) = self.set.join_next_with_id().await {
                later = later.or(self.failure(ended, false));
            }
            later
        })
        .await;
        let result = match (first, drained) {
            (Some(error), _) | (None, Ok(Some(error))) => Err(error),
            (None, Ok(None)) => Ok(()),
            (None, Err(_)) => {
                let mut tasks: Vec<_> = self.names.values().copied().collect();
                tasks.sort_unstable();
                Err(Error::StillRunning { tasks })
            }
        };
        self.set.abort_all();
        result
    }

    fn failure(
        &mut self,
        ended: Result<(Id, Result<(), Cause>), JoinError>,
        early: bool,
    ) -> Option<Error> {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let task = self.names.remove(&id).unwrap_or("without a name");
        match ended {
            Ok((_, Ok(()))) => early.then_some(Error::Ended { task, source: None }),
            // What ends together with the rest may see its source end first.
            Ok((_, Err(source))) => early.then_some(Error::Ended {
                task,
                source: Some(source),
            }),
            Err(_) => Some(Error::Panicked { task }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_task_that_ends_by_itself_is_named() {
        let mut tasks = Tasks::default();
        let stop = tasks.stop.clone();
        tasks.add("steady", async move { stop.cancelled().await });
        tasks.add("weary", async { Err::<(), _>("enough") });
        let error = tasks.run(CancellationToken::new()).await.unwrap_err();
        assert!(
            matches!(&error, Error::Ended { task: "weary", source: Some(cause) } if cause.to_string() == "enough")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_all_and_is_named() {
        let mut tasks = Tasks::default();
        tasks.add::<()>("shaky", async { panic!("as asked") });
        assert!(matches!(
            tasks.run(CancellationToken::new()).await,
            Err(Error::Panicked { task: "shaky" })
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_runs_after_five_seconds_is_named() {
        let mut tasks = Tasks::default();
        tasks.add("stubborn", std::future::pending::<()>());
        let shutdown = CancellationToken::new();
        shutdown.cancel();
        let started = tokio::time::Instant::now();
        let error = tasks.run(shutdown).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "still running 5 seconds after the signal: stubborn"
        );
        assert_eq!(started.elapsed(), timeouts::DRAIN);
    }
}
