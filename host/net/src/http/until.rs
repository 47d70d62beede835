//! A deadline together with the limit that it came from.

use std::future::Future;
use std::time::Duration;

use tokio::time::{Instant, timeout_at};

use super::error::{HttpError, Stage};

/// Maximum limit: the clock overflows before the longest `Duration`.
const LONGEST: Duration = Duration::from_hours(24);

#[derive(Debug, Clone, Copy)]
pub(super) struct Until {
    pub(super) at: Instant,
    limit: Duration,
}

impl Until {
    pub(super) fn after(limit: Duration) -> Self {
        let limit = limit.min(LONGEST);
        Self {
            at: Instant::now() + limit,
            limit,
        }
    }

    /// Returns the earlier of the two deadlines.
    pub(super) fn or(self, other: Self) -> Self {
        if other.at < self.at { other } else { self }
    }

    pub(super) fn passed(&self) -> bool {
        self.at <= Instant::now()
    }

    pub(super) fn error(&self, stage: Stage) -> HttpError {
        HttpError::Timeout {
            stage,
            limit: self.limit,
        }
    }

    pub(super) async fn run<T>(
        &self,
        stage: Stage,
        work: impl Future<Output = T>,
    ) -> Result<T, HttpError> {
        timeout_at(self.at, work)
            .await
            .map_err(|_| self.error(stage))
    }
}
