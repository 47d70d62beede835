//! `leafhost handler run`: runs one discovery as the agent does and shows the whole result.

use anyhow::{Context as _, Result};
use leafhost_core::ports::{Handler, Loader as _};
use leafhost_core::session::{Opening, Outcome, SessionSpec};
use leafhost_grants::{Grants, Limits};
use tokio::signal::unix::{SignalKind, signal};

use super::{guest_log, open};
use crate::args::RunArgs;
use crate::folders;
use crate::terminal::{self, Output, Paint, Tone};

mod document;
pub mod input;
mod page;

use document::Document;

/// Runs `leafhost handler run`.
pub fn run(args: RunArgs) -> Result<()> {
    let RunArgs {
        file,
        configuration,
        details,
        property,
        grants,
        explain,
        watch,
        output,
        node_name,
        log_level,
        compiler,
    } = args;
    guest_log::start(&log_level)?;
    let node = match node_name {
        Some(name) => folders::check_node_name(&name).map(|()| name)?,
        None => folders::node_name()?,
    };
    let source = open::read(&file, grants.as_deref())?;
    let limits = source
        .grants
        .as_deref()
        .and_then(|text| Grants::parse(text).ok())
        .map_or_else(Limits::default, |grants| grants.limits);
    let given = match (configuration, details) {
        (Some(path), _) => Some(input::Given::Configuration(path)),
        (None, Some(path)) => Some(input::Given::Details(path)),
        (None, None) => None,
    };
    open::block_on(async {
        let runtime = open::runtime(&compiler, true)?;
        let handler = runtime.load(&source).await?;
        for warning in handler.warnings() {
            note(Tone::Warning, "warning:", warning);
        }
        let input = input::read(given.as_ref(), handler.description(), &property)?;
        let refused = handler
            .validate(&input.details)
            .await
            .with_context(|| format!("cannot check {}", input.origin))?;
        let show = Show {
            output,
            explain,
            live: watch,
            limits,
            origin: input.origin,
        };
        if !refused.is_empty() {
            let document =
                Document::refused(handler.as_ref(), &node, &input.configuration, refused);
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

/// Calls the handler once; with `live` repeatedly, until a signal or invalid details.
async fn discover(handler: &dyn Handler, spec: SessionSpec, show: &Show) -> Result<()> {
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let (node, configuration) = (spec.node.clone(), spec.configuration.clone());
    let mut session = handler.open(spec);
    loop {
        let report = tokio::select! {
            report = session.next() => report,
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        };
        let ends = matches!(report.outcome, Outcome::InvalidDetails(_));
        let document = Document::new(handler, &node, &configuration, report);
        let shown = show.show(&document);
        if !show.live || ends {
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

/// Output options.
struct Show {
    output: Output,
    explain: bool,
    live: bool,
    limits: Limits,
    /// Origin of the details.
    origin: String,
}

impl Show {
    /// Prints the report and its cost; fails if there was no answer.
    fn show(&self, document: &Document) -> Result<()> {
        let text = match self.output {
            Output::Table => page::text(document, self.explain, Paint::stdout())?,
            output => terminal::document(output, self.live, document)?,
        };
        terminal::print(&text)?;
        for line in page::cost(document, self.explain, &self.limits) {
            note(Tone::Faint, "call ", &line);
        }
        document.failure(&self.origin)
    }
}
