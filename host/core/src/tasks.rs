//! Named tasks, each of which is joined. The end of any task is handled explicitly.

use std::collections::HashMap;
use std::time::Duration;

use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use crate::timeouts;

/// Error with which a task ended.
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Error of a task that ended unexpectedly, or did not end in time.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A task ended by itself.
    #[error("task {task} has ended")]
    Ended {
        /// Name of the task.
        task: &'static str,
        /// Error with which the task ended, if any.
        #[source]
        source: Option<Cause>,
    },
    /// A task panicked.
    #[error("task {task} panicked; this is a bug, see the log")]
    Panicked {
        /// Name of the task.
        task: &'static str,
    },
    /// Tasks did not end in time.
    #[error("still running {} seconds after the signal: {}", limit.as_secs(), tasks.join(", "))]
    StillRunning {
        /// Names of the tasks.
        tasks: Vec<&'static str>,
        /// Time limit that was exceeded.
        limit: Duration,
    },
}

/// Return value of a task: nothing, or a result.
pub trait Outcome {
    /// Converts the value to a result.
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

/// Set of tasks that run until `stop` is cancelled or the set is dropped.
#[derive(Debug, Default)]
pub struct Tasks {
    /// Token that asks all tasks to end.
    pub stop: CancellationToken,
    set: JoinSet<Result<(), Cause>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    /// Spawns a task that must end by itself once `stop` is cancelled.
    pub fn add<T: Outcome>(
        &mut self,
        name: &'static str,
        task: impl Future<Output = T> + Send + 'static,
    ) {
        let task = async move { task.await.into_result() };
        self.names.insert(self.set.spawn(task).id(), name);
    }

    /// Spawns a task that is dropped at its current await point once `stop` is cancelled.
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

    /// Runs all tasks until `shutdown` and joins each of them. The first task that ends by itself ends all others.
    pub async fn run(mut self, shutdown: CancellationToken) -> Result<(), Error> {
        let first = tokio::select! {
            biased;
            () = shutdown.cancelled() => None,
            error = self.ended() => Some(error),
        };
        let drained = self.drain(timeouts::DRAIN).await;
        first.map_or(drained, Err)
    }

    /// Waits until a task ends by itself; waits forever if there are none.
    pub async fn ended(&mut self) -> Error {
        match self.set.join_next_with_id().await {
            Some(ended) => self.failure(ended),
            None => std::future::pending().await,
        }
    }

    /// Cancels `stop` and waits for all tasks, at most `limit`. Ignores errors other than panics, because a task may
    /// see its source end first.
    pub async fn drain(&mut self, limit: Duration) -> Result<(), Error> {
        self.stop.cancel();
        let drained = tokio::time::timeout(limit, async {
            let mut panicked = None;
            while let Some(ended) = self.set.join_next_with_id().await {
                let error = Some(self.failure(ended));
                let error = error.filter(|error| matches!(error, Error::Panicked { .. }));
                panicked = panicked.or(error);
            }
            panicked
        })
        .await;
        let result = match drained {
            Ok(None) => Ok(()),
            Ok(Some(error)) => Err(error),
            Err(_) => {
                let mut tasks: Vec<_> = self.names.values().copied().collect();
                tasks.sort_unstable();
                Err(Error::StillRunning { tasks, limit })
            }
        };
        self.set.abort_all();
        result
    }

    fn failure(&mut self, ended: Result<(Id, Result<(), Cause>), JoinError>) -> Error {
        let id = match &ended {
            Ok((id, _)) => *id,
            Err(error) => error.id(),
        };
        let task = self.names.remove(&id).unwrap_or("without a name");
        match ended {
            Ok((_, result)) => Error::Ended {
                task,
                source: result.err(),
            },
            Err(_) => Error::Panicked { task },
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
