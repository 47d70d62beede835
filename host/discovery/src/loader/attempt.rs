//! Counts the failures and plans the retries of one version. Does not depend on files.

use leafhost_core::backoff;
use leafhost_core::ports::{LoadError, SourceVersion};
use tokio::time::Instant;

/// Number of deaths in a row, each while the agent loaded a version, after which the version is no longer loaded.
const MOST_DEATHS: u32 = 3;

/// Version to load.
#[derive(Debug)]
pub struct Attempt {
    pub version: SourceVersion,
    /// Number of failures in a row.
    pub failures: u32,
    /// Time of the next attempt, if one is planned.
    pub retry: Option<Instant>,
}

impl Attempt {
    pub fn new(version: SourceVersion) -> Self {
        Self {
            version,
            failures: 0,
            retry: None,
        }
    }

    /// Creates the attempt for a version during whose loads the agent has died `deaths` times in a row. The loader loads the version later and alone,
    /// and after [`MOST_DEATHS`] deaths not at all.
    pub fn after_deaths(version: SourceVersion, name: &str, deaths: u32) -> (Self, LoadError) {
        let attempt = Self {
            retry: (deaths < MOST_DEATHS)
                .then(|| Instant::now() + backoff::wait(deaths.saturating_add(2))),
            ..Self::new(version)
        };
        let times = if deaths == 1 { "time" } else { "times" };
        let what = if attempt.retry.is_some() {
            "it is loaded again in a moment, when others are"
        } else {
            "it is not loaded any more; put another version in its place, or, to have this one loaded, stop the agent and remove the file `loading` from its state folder"
        };
        let why = format!(
            "the agent has died {deaths} {times} in a row while it was being loaded; {what}"
        );
        let error = LoadError::new(name, why, attempt.retry.is_some());
        (attempt, error)
    }

    /// Records a failure; returns true if it should be logged.
    pub fn failed(&mut self, error: &LoadError) -> bool {
        self.failures = self.failures.saturating_add(1);
        if error.transient {
            self.retry = Some(Instant::now() + backoff::wait(self.failures));
        }
        self.failures.is_power_of_two()
    }

    /// Returns true if a retry is due, and clears it, so that each retry is reported once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.retry.take_if(|at| *at <= now).is_some()
    }
}
