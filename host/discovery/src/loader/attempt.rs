//! One version that is to serve: how often it failed, and when it is tried again. Knows no file.

use leafhost_core::backoff;
use leafhost_core::ports::{LoadError, SourceVersion};
use tokio::time::Instant;

/// So many deaths of the agent while it was being loaded are no coincidence.
const MOST_DEATHS: u32 = 3;

/// A version that is to serve.
#[derive(Debug)]
pub struct Attempt {
    pub version: SourceVersion,
    /// In a row.
    failures: u32,
    /// When it is tried again, if that may help.
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

    /// Of a version that the agent has died of so many times while it was being loaded. Then it is loaded after others and alone, after
    /// [`MOST_DEATHS`] not at all.
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
        let error = LoadError {
            source_name: name.to_owned(),
            message: format!(
                "the agent has died {deaths} {times} in a row while it was being loaded; {what}"
            ),
            missing_grants: Vec::new(),
            transient: attempt.retry.is_some(),
        };
        (attempt, error)
    }

    /// Takes note of a failure. Returns whether it is worth a line in the log.
    pub fn failed(&mut self, error: &LoadError) -> bool {
        self.failures = self.failures.saturating_add(1);
        if error.transient {
            self.retry = Some(Instant::now() + backoff::wait(self.failures));
        }
        backoff::is_told(self.failures.into())
    }

    /// It loads.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Whether it is time to try again; then it is said once.
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.retry.take_if(|at| *at <= now).is_some()
    }
}
