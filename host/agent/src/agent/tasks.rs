//! Tasks by name: every one is joined, and its end is a decision.

use std::collections::HashMap;

use leafhost_core::timeouts;
use tokio::task::{Id, JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

use super::Error;

/// Why a task ended.
pub(super) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Tasks that run until `stop`.
pub(super) struct Tasks {
    stop: CancellationToken,
    set: JoinSet<Result<(), Cause>>,
    names: HashMap<Id, &'static str>,
}

impl Tasks {
    pub fn new(stop: CancellationToken) -> Self {
        Self {
            stop,
            set: JoinSet::new(),
            names: HashMap::new(),
        }
    }

    pub fn spawn(
        &mut self,
        name: &'static str,
        task: impl Future<Output = Result<(), Cause>> + Send + 'static,
    ) {
        let id = self.set.spawn(task).id();
        self.names.insert(id, name);
    }

    /// Waits for `stop` and then for every task. The first one that ends by itself ends all.
    pub async fn join(mut self) -> Result<(), Error> {
        let first = tokio::select! {
            biased;
            () = self.stop.cancelled() => None,
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
        let mut tasks = Tasks::new(CancellationToken::new());
        let stop = tasks.stop.clone();
        tasks.spawn("steady", async move {
            stop.cancelled().await;
            Ok(())
        });
        tasks.spawn("weary", async { Err("enough".into()) });
        let error = tasks.join().await.unwrap_err();
        assert!(
            matches!(&error, Error::Ended { task: "weary", source: Some(cause) } if cause.to_string() == "enough")
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_ends_all_and_is_named() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("shaky", async { panic!("as asked") });
        assert!(matches!(
            tasks.join().await,
            Err(Error::Panicked { task: "shaky" })
        ));
    }

    #[tokio::test(start_paused = true)]
    async fn what_still_runs_after_five_seconds_is_named() {
        let mut tasks = Tasks::new(CancellationToken::new());
        tasks.spawn("stubborn", std::future::pending());
        tasks.stop.cancel();
        let started = tokio::time::Instant::now();
        let error = tasks.join().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "still running 5 seconds after the signal: stubborn"
        );
        assert_eq!(started.elapsed(), timeouts::DRAIN);
    }
}
