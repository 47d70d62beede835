//! Log of the agent, on stderr: lines for people, or one JSON object per line.
//!
//! A separate thread writes the log. If the reader stops reading, a bounded number of lines is queued; further lines are
//! dropped and counted.

use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;
use std::sync::{OnceLock, mpsc};
use std::thread;
use std::time::Duration;

use anyhow::Result;
use tracing_appender::non_blocking::{ErrorCounter, NonBlockingBuilder, WorkerGuard};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::LogFormat;
use crate::failure::Usage;
use crate::terminal::Paint;

/// Maximum number of queued lines.
const LINES: usize = 4096;
/// Time limit for writing the last lines at the end.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

static LOST: OnceLock<ErrorCounter> = OnceLock::new();

pub fn lost_lines() -> u64 {
    let lost = LOST.get().map_or(0, ErrorCounter::dropped_lines);
    u64::try_from(lost).unwrap_or(u64::MAX)
}

/// Guard of the log; dropping it writes the last lines.
#[derive(Debug)]
pub struct Log(Option<WorkerGuard>);

impl Drop for Log {
    fn drop(&mut self) {
        let guard = self.0.take();
        let (ended, end) = mpsc::channel::<()>();
        // If nothing reads stderr, dropping the guard blocks and then prints to stdout, so a thread drops it.
        let writes = thread::Builder::new().spawn(move || {
            drop(guard);
            drop(ended);
        });
        if writes.is_ok() {
            let _ = end.recv_timeout(FLUSH_TIMEOUT);
        }
    }
}

/// Starts the log, which also records panics.
pub fn start(format: LogFormat, level: &str) -> Result<Log> {
    let filter = filter(level).ok_or_else(|| {
        Usage(format!(
            "--log-level {level:?} is not error, warn, info, debug, trace, off or a list such as info,leafhost_wasm=debug"
        ))
    })?;
    let log = tracing_subscriber::registry().with(filter);
    let (writer, guard) = NonBlockingBuilder::default()
        .buffered_lines_limit(LINES)
        .thread_name("log")
        .finish(std::io::stderr());
    let lost = writer.error_counter();
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(writer)
        .with_ansi(Paint::stderr().is_on());
    let journal = is_journal();
    let text = match format {
        LogFormat::Text => true,
        LogFormat::Json => false,
        LogFormat::Auto => journal || std::io::stderr().is_terminal(),
    };
    let started = match (text, journal) {
        // The journal has its own times.
        (true, true) => log.with(lines.without_time()).try_init(),
        (true, false) => log.with(lines).try_init(),
        (false, _) => log.with(lines.json().flatten_event(true)).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))?;
    LOST.get_or_init(|| lost);
    std::panic::set_hook(Box::new(|panic| tracing::error!("{panic}")));
    Ok(Log(Some(guard)))
}

/// Parses the filter. The library's parser would read an empty part as `error`, and a misspelt level as a target.
fn filter(level: &str) -> Option<Targets> {
    let parts = level.split(',').map(str::trim);
    let mut parts = parts.filter(|part| !part.is_empty());
    // The caller of each request logs its failure.
    let targets = Targets::new().with_target("kube_client", LevelFilter::OFF);
    parts.try_fold(targets, |targets, part| {
        let Some((target, level)) = part.split_once('=') else {
            return Some(targets.with_default(part.parse::<LevelFilter>().ok()?));
        };
        // Filters on spans are not supported.
        if target.is_empty() || level.is_empty() || target.contains('[') {
            return None;
        }
        Some(targets.with_target(target, level.parse::<LevelFilter>().ok()?))
    })
}

/// Returns true if stderr goes to the journal: `JOURNAL_STREAM` has its device and inode, see systemd.exec(5). The variable
/// alone proves nothing, since programs that redirect stderr inherit it.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

#[cfg(test)]
mod tests {
    use tracing::Level;

    use super::*;

    #[test]
    fn a_wrong_level_names_the_flag() {
        for wrong in [
            "info,=",
            "loud",
            "info,loud",
            "info,leafhost_wasm=loud",
            "leafhost_wasm=",
            "=info",
            "[span]=debug",
        ] {
            let error = start(LogFormat::Auto, wrong).unwrap_err();
            assert!(error.is::<Usage>(), "{wrong}: {error}");
            assert!(error.to_string().contains("--log-level"), "{error}");
        }
    }

    #[test]
    fn a_level_applies_to_everything_or_to_a_target() {
        let most = |level, target| {
            let filter = filter(level).unwrap();
            let levels = [
                Level::ERROR,
                Level::WARN,
                Level::INFO,
                Level::DEBUG,
                Level::TRACE,
            ];
            let logged = |level: &&Level| filter.would_enable(target, level);
            levels.iter().take_while(logged).count()
        };
        for (level, target, expected) in [
            ("info", "leafhost_agent", 3),
            ("info,", "leafhost_agent", 3),
            (" warn , leafhost_wasm=debug ", "leafhost_agent", 2),
            ("warn,leafhost_wasm=debug", "leafhost_wasm::cache", 4),
            ("INFO,leafhost_wasm=off", "leafhost_wasm", 0),
            ("off", "leafhost_agent", 0),
            ("info", "kube_client::client", 0),
            ("info,kube_client=debug", "kube_client::client", 4),
        ] {
            assert_eq!(most(level, target), expected, "{level}: {target}");
        }
    }
}
