//! The agent's log, on stderr: lines for people, or one JSON object a line.

use std::io::IsTerminal as _;
use std::os::unix::fs::MetadataExt as _;

use anyhow::Result;
use tracing_subscriber::EnvFilter;

use crate::args::LogFormat;
use crate::failure::Usage;
use crate::terminal::Paint;

/// Starts it.
pub fn start(format: LogFormat, level: &str) -> Result<()> {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        Usage(format!(
            "--log-level {level:?} is not error, warn, info, debug, trace or a list such as info,leafhost_wasm=debug: {error}"
        ))
    })?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
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
        (true, true) => builder.without_time().try_init(),
        (true, false) => builder.try_init(),
        (false, _) => builder.json().flatten_event(true).try_init(),
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
        let error = start(LogFormat::Auto, "info,=").unwrap_err();
        assert!(error.is::<Usage>(), "{error}");
        assert!(error.to_string().contains("--log-level"), "{error}");
    }
}
