//! The agent's log, on stderr: lines for people, or one JSON object a line.

use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Result;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::args::LogFormat;
use crate::failure::Usage;
use crate::terminal::Paint;

/// Starts it.
pub fn start(format: LogFormat, level: &str) -> Result<()> {
    let filter: Targets = level.parse().map_err(|error| {
        Usage(format!(
            "--log-level {level:?} is not error, warn, info, debug, trace or a list such as info,leafhost_wasm=debug: {error}"
        ))
    })?;
    let log = tracing_subscriber::registry().with(filter);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
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
    started.map_err(|error| anyhow::anyhow!("cannot start the log: {error}"))
}

/// Whether stderr goes to the journal: `JOURNAL_STREAM` has its device and inode, see systemd.exec(5). The
/// variable alone says nothing, as it is inherited by what redirects stderr.
fn is_journal() -> bool {
    let stream = std::env::var("JOURNAL_STREAM").unwrap_or_default();
    std::fs::metadata("/proc/self/fd/2")
        .is_ok_and(|stderr| stream == format!("{}:{}", stderr.dev(), stderr.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_level_names_the_flag() {
        for wrong in ["info,=", "loud,", "info,leafhost_wasm=loud"] {
            let error = start(LogFormat::Auto, wrong).unwrap_err();
            assert!(error.is::<Usage>(), "{error}");
            assert!(error.to_string().contains("--log-level"), "{error}");
        }
    }
}
