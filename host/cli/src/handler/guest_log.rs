//! Prints a guest's log for its author: one line per message on stderr, with its level. `log` marks the guest's lines,
//! `host` those of the host.

use std::fmt::{self, Write as _};

use anyhow::Result;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::failure::Usage;
use crate::terminal::{Paint, Tone};

/// Log target of guests' lines.
const GUEST: &str = "leafhost::guest";

/// Shows the guest's lines from `level` on, and the host's own from `warn` on.
pub fn start(level: &str) -> Result<()> {
    let level: Level = level.parse().map_err(|_| {
        Usage(format!(
            "--log-level is {level:?}, must be error, warn, info, debug or trace"
        ))
    })?;
    let filter = Targets::new()
        .with_default(Level::WARN)
        .with_target(GUEST, level);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .event_format(Lines(Paint::stderr()));
    let log = tracing_subscriber::registry().with(filter).with(lines);
    let started = log.try_init();
    // Only a second call fails, and then the lines are shown already.
    drop(started);
    Ok(())
}

struct Lines(Paint);

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let metadata = event.metadata();
        let mut said = Said {
            of_guest: metadata.target() == GUEST,
            ..Said::default()
        };
        event.record(&mut said);
        writeln!(writer, "{}", said.line(*metadata.level(), self.0))
    }
}

#[derive(Default)]
struct Said {
    of_guest: bool,
    message: String,
    fields: String,
}

impl Said {
    fn line(&self, level: Level, paint: Paint) -> String {
        let (name, tone) = match level {
            Level::ERROR => ("error", Tone::Bad),
            Level::WARN => ("warn", Tone::Warning),
            Level::INFO => ("info", Tone::Good),
            Level::DEBUG => ("debug", Tone::Faint),
            Level::TRACE => ("trace", Tone::Faint),
        };
        let who = if self.of_guest { "log" } else { "host" };
        let message = paint.apply(Tone::Plain, &self.message);
        let label = paint.apply(tone, &format!("{name:<5}"));
        let fields = paint.apply(Tone::Faint, &self.fields);
        format!("{who:<5}{label}  {message}{fields}")
    }
}

impl Visit for Said {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        } else if !self.of_guest {
            // The fields of a guest's line name the guest, which its author knows. Writing to a string cannot fail.
            let _ = write!(self.fields, " {}={value:?}", field.name());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guests_line_has_its_level_and_text() {
        let said = Said {
            of_guest: true,
            message: "two\nlines".into(),
            fields: String::new(),
        };
        assert_eq!(
            said.line(Level::WARN, Paint::PLAIN),
            "log  warn   two\\nlines"
        );
    }

    #[test]
    fn an_unknown_level_is_a_usage_error() {
        let error = start("loud").unwrap_err();
        assert!(error.is::<Usage>(), "{error}");
    }
}
