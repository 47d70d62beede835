//! `leafhost:log`: log lines for the operator. Needs no grant.
//!
//! Lines go to `tracing` under the target `leafhost::guest` with the handler, its source and the Configuration as fields.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use leafhost_grants::Secrets;
use tokio::time::Instant;

use super::CallState;
use crate::bindings::leafhost::log::log;
use crate::record::Record;

/// Maximum length of a line, in bytes.
const MAX_LINE: usize = 4096;
/// Maximum number of lines of a handler per [`WINDOW`]. The agent logs the handler's faults in five more.
const LINES: usize = 15;
/// Period of the limit [`LINES`].
const WINDOW: Duration = Duration::from_secs(10);

pub(crate) use tracing::Level;

/// Limits the lines of all calls of a handler.
#[derive(Debug, Default)]
pub(crate) struct Rate(Mutex<VecDeque<Instant>>);

impl Rate {
    /// Returns true if one more line may be written now.
    pub(crate) fn admits(&self) -> bool {
        let mut written = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        while written
            .pop_front_if(|at| now.duration_since(*at) >= WINDOW)
            .is_some()
        {}
        let admitted = written.len() < LINES;
        if admitted {
            written.push_back(now);
        }
        admitted
    }
}

/// Destination of a session's lines.
#[derive(Debug)]
pub(crate) struct LogSink {
    /// Name of the handler; that of the source until the handler has given its own.
    pub(crate) handler: String,
    pub(crate) source: String,
    /// Name of the Configuration; empty outside of `discover`.
    pub(crate) configuration: String,
    /// Secrets that no line may show.
    pub(crate) secrets: Arc<Secrets>,
    /// Log budget shared by all sessions of the handler.
    pub(crate) rate: Arc<Rate>,
}

impl LogSink {
    /// Writes a line, or drops and counts it.
    pub(crate) fn write(&self, record: &Record, level: Level, message: &str) {
        // A line that is not shown takes no budget.
        if level == Level::DEBUG && !tracing::enabled!(target: "leafhost::guest", Level::DEBUG) {
            return;
        }
        if !self.rate.admits() {
            record.kept().log_dropped += 1;
            return;
        }
        let message = self.secrets.clean(message, MAX_LINE);
        let (handler, source, configuration) = (&self.handler, &self.source, &self.configuration);
        macro_rules! line {
            ($level:ident) => {
                tracing::event!(target: "leafhost::guest", Level::$level, handler, source, configuration, "{message}")
            };
        }
        match level {
            Level::ERROR => line!(ERROR),
            Level::WARN => line!(WARN),
            Level::INFO => line!(INFO),
            _ => line!(DEBUG),
        }
    }
}

impl log::Host for CallState {
    async fn write(&mut self, level: log::Level, message: String) -> wasmtime::Result<()> {
        let level = match level {
            log::Level::Debug => Level::DEBUG,
            log::Level::Info => Level::INFO,
            log::Level::Warn => Level::WARN,
            log::Level::Error => Level::ERROR,
        };
        self.log.write(&self.record, level, &message);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn fifteen_lines_in_any_ten_seconds_are_written() {
        let rate = Rate::default();
        let admitted = |n: u32| (0..n).filter(|_| rate.admits()).count();
        assert_eq!(admitted(5), 5);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(admitted(100), 10);
        tokio::time::advance(Duration::from_secs(1)).await;
        assert_eq!(admitted(100), 5);
        tokio::time::advance(Duration::from_secs(9)).await;
        assert_eq!(admitted(100), 10);
    }
}
