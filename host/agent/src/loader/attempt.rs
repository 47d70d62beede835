//! One version that is to serve: how often it failed, and when it is tried again. Knows no file.

use leafhost_core::ports::{LoadError, SourceVersion};
use tokio::time::Instant;

use crate::backoff;

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
