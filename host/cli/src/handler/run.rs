//! `leafhost handler run`: runs one discovery as the agent does and shows the whole result.

use anyhow::{Context as _, Result};
use leafhost_core::ports::{Handler, Loader as _};
use leafhost_core::session::{CallStats, Opening, Outcome, Report, SessionSpec};
use leafhost_grants::{Grants, Limits};

use super::{guest_log, open};
use crate::args::RunArgs;
use crate::folders;
use crate::runtime::block_on;
use crate::signals::Signals;
use crate::terminal::{self, Output, Paint, Tone};

mod document;
pub mod input;
mod page;

use document::Document;

pub fn run(args: &RunArgs) -> Result<()> {
    guest_log::start(args.log_level);
    let node = folders::node_name(args.node_name.as_deref())?;
    let source = open::read(&args.file, args.grants.as_deref())?;
    let grants = Grants::read(source.grants.as_deref()).unwrap_or_default();
    block_on(async {
        let runtime = open::runtime(&args.compiler, true)?;
        let handler = runtime.load(&source).await?;
        for warning in &handler.facts().warnings {
            note(Tone::Warning, "warning:", warning);
        }
        let input = input::read(args, &handler.facts().description)?;
        let refused = handler
            .validate(&input.details)
            .await
            .with_context(|| format!("cannot check {}", input.origin))?;
        let show = Show {
            args,
            limits: grants.limits,
            origin: input.origin,
        };
        if !refused.is_empty() {
            let report = Report::new(Outcome::InvalidDetails(refused), CallStats::default());
            let mut document = Document::new(handler.as_ref(), &node, &input.configuration, report);
            document.call = None;
            return show.show(&document);
        }
        let spec = SessionSpec {
            node,
            configuration: input.configuration,
            details: input.details,
            properties: input.properties,
            opening: Opening::First,
        };
        discover(handler.as_ref(), spec, &show).await
    })
}

/// Calls the handler once; with `--watch` repeatedly, until a signal or invalid details.
async fn discover(handler: &dyn Handler, spec: SessionSpec, show: &Show<'_>) -> Result<()> {
    let mut signals = Signals::new()?;
    let (node, configuration) = (spec.node.clone(), spec.configuration.clone());
    let mut session = handler.open(spec);
    loop {
        let report = tokio::select! {
            report = session.next() => report,
            _ = signals.next() => return Ok(()),
        };
        let ends = matches!(report.outcome, Outcome::InvalidDetails(_));
        let document = Document::new(handler, &node, &configuration, report);
        let shown = show.show(&document);
        if !show.args.watch || ends {
            return shown;
        }
        if let Err(error) = shown {
            if error.is::<std::io::Error>() {
                return Err(error);
            }
            // The next call may succeed.
            note(Tone::Bad, "error:", &format!("{error:#}"));
        }
    }
}

/// Prints a line on stderr.
fn note(tone: Tone, label: &str, text: &str) {
    let paint = Paint::stderr();
    eprintln!(
        "{} {}",
        paint.apply(tone, label),
        paint.apply(Tone::Plain, text)
    );
}

struct Show<'a> {
    args: &'a RunArgs,
    limits: Limits,
    /// Origin of the details.
    origin: String,
}

impl Show<'_> {
    /// Prints the report and its cost; fails if there was no answer.
    fn show(&self, document: &Document) -> Result<()> {
        let explain = self.args.explain;
        let text = match self.args.output {
            Output::Table => page::text(document, explain, Paint::stdout()),
            output => terminal::document(output, self.args.watch, document)?,
        };
        terminal::print(&text)?;
        for line in page::cost(document, explain, &self.limits) {
            note(Tone::Faint, "call ", &line);
        }
        document.failure(&self.origin)
    }
}
