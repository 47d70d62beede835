//! Prints a guest's log for its author: one line per message on stderr, with its level. `log` marks the guest's lines,
//! `host` those of the host.

use std::fmt::{self, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use crate::terminal::{Paint, Tone};

/// Log target of guests' lines.
const GUEST: &str = "leafhost::guest";

/// Shows the guest's lines from `level` on, and the host's own from `warn` on.
pub fn start(level: Level) {
    let filter = Targets::new()
        .with_default(Level::WARN)
        .with_target(GUEST, level);
    let lines = Lines(Paint::stderr());
    let log = tracing_subscriber::registry().with(filter).with(lines);
    let started = log.try_init();
    // Only a second call fails, and then the lines are shown already.
    drop(started);
}

struct Lines(Paint);

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _context: Context<'_, S>) {
        let metadata = event.metadata();
        let mut said = Said {
            of_guest: metadata.target() == GUEST,
            ..Said::default()
        };
        event.record(&mut said);
        let line = said.line(*metadata.level(), self.0);
        // If stderr is closed, nobody reads the lines.
        let _ = writeln!(std::io::stderr(), "{line}");
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
}
