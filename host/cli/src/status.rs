//! `leafhost status`: requests the status from the running agent and shows it.

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use leafhost_agent::status::Status;
use leafhost_core::instance::Instance;

use crate::args::{StatusArgs, View};
use crate::failure::Usage;
use crate::folders::User;
use crate::terminal::{self, Output, Paint};

pub mod client;
pub mod configuration;
pub mod podman;
pub mod tables;

mod kubelet;
mod overview;
mod slots;
mod socket;
mod watch;

#[cfg(test)]
mod tests;

/// View and output options of the command line.
#[derive(Debug, Clone)]
struct Request {
    view: Option<View>,
    name: Option<String>,
    /// Show only devices that have a problem.
    unhealthy: bool,
    /// Show each skipped candidate on its own line.
    all: bool,
    output: Output,
    paint: Paint,
    /// Cut the overview to the terminal, and print one JSON object per line.
    live: bool,
}

/// Runs `leafhost status`.
pub fn run(args: StatusArgs) -> Result<()> {
    let StatusArgs {
        view,
        name,
        unhealthy,
        all,
        ready,
        live,
        watch,
        output,
        agent,
        state_dir,
    } = args;
    let misplaced = match view {
        Some(View::Configuration) => unhealthy.then_some("--unhealthy needs `instances`"),
        Some(View::Instances) => all.then_some("--all needs `configuration`"),
        _ if name.is_some() => Some("NAME can only follow `configuration` or `instances`"),
        _ if unhealthy => Some("--unhealthy needs `instances`"),
        _ => all.then_some("--all needs `configuration`"),
    };
    if let Some(misplaced) = misplaced {
        return Err(Usage(misplaced.to_owned()).into());
    }
    let search = client::Search::new(agent.as_deref(), state_dir.as_deref(), &User::current());
    if ready {
        return search.ready();
    }
    if live {
        return search.live();
    }
    let request = Request {
        view,
        name,
        unhealthy,
        all,
        output,
        paint: Paint::stdout(),
        live: watch,
    };
    if watch {
        return watch::run(search, move |newest| {
            let frame = newest.as_ref().map_err(Clone::clone).and_then(|status| {
                let frame = request.frame(status, Timestamp::now());
                frame.map_err(|error| format!("{error:#}"))
            });
            frame.unwrap_or_else(|error| request.trouble(&error))
        });
    }
    let answer = search
        .status(None)?
        .context("the agent answered \"not changed\" to a request that does not ask for changes")?;
    let text = request.render(&answer.status, Timestamp::now())?;
    Ok(terminal::print(&text)?)
}

impl Request {
    fn frame(&self, status: &Status, now: Timestamp) -> Result<watch::Frame> {
        let text = self.render(status, now)?;
        // For one Configuration every call matters; for the overview only changed results do.
        let key = match self.view {
            Some(View::Configuration) if self.name.is_some() => serde_json::to_string(status)?,
            _ => serde_json::to_string(&essence(status))?,
        };
        Ok(watch::Frame { text, key })
    }

    fn trouble(&self, error: &str) -> watch::Frame {
        let text = match self.output {
            Output::Table if terminal::is_terminal() => {
                let lines = terminal::wrap(&terminal::escape(error), terminal::size().width);
                format!("{}\n(trying again every second)\n", lines.join("\n"))
            }
            Output::Table => format!("{}\n(trying again every second)\n", terminal::escape(error)),
            Output::Json => format!("{}\n", serde_json::json!({"error": error})),
            Output::Yaml => format!("---\nerror: {}\n", serde_json::json!(error)),
        };
        watch::Frame {
            key: text.clone(),
            text,
        }
    }

    fn render(&self, status: &Status, now: Timestamp) -> Result<String> {
        match self.output {
            Output::Table => self.table(status, now),
            output => terminal::document(output, self.live, &self.value(status)?),
        }
    }

    fn value(&self, status: &Status) -> Result<serde_json::Value> {
        Ok(match (self.view, &self.name) {
            (None, _) => serde_json::to_value(status)?,
            (Some(View::Handlers), _) => serde_json::to_value(&status.handlers)?,
            (Some(View::Instances), _) => serde_json::to_value(self.instances(status)?)?,
            (Some(View::Slots), _) => serde_json::to_value(slots::list(status))?,
            (Some(View::Resources), _) => serde_json::to_value(kubelet::resources(status))?,
            (Some(View::Configuration), None) => serde_json::to_value(&status.configurations)?,
            (Some(View::Configuration), Some(name)) => {
                serde_json::to_value(configuration::find(status, name)?)?
            }
        })
    }

    /// Returns the Instances that were asked for.
    fn instances<'a>(&self, status: &'a Status) -> Result<Vec<&'a Instance>> {
        let name = self.name.as_deref();
        let view = name
            .map(|name| configuration::find(status, name))
            .transpose()?;
        let instances = tables::of(status, view);
        Ok(instances
            .filter(|instance| !self.unhealthy || tables::is_troubled(instance, &status.node))
            .collect())
    }

    fn table(&self, status: &Status, now: Timestamp) -> Result<String> {
        let size = (self.live && terminal::is_terminal()).then(terminal::size);
        let lines = match (self.view, &self.name) {
            (None, _) => overview::lines(status, now, self.paint, size)?,
            (Some(View::Handlers), _) => {
                tables::handlers(&status.handlers, now).lines(self.paint)?
            }
            (Some(View::Instances), _) => {
                tables::instances(status, &self.instances(status)?, now).lines(self.paint)?
            }
            (Some(View::Slots), _) => slots::table(status).lines(self.paint)?,
            (Some(View::Resources), _) => kubelet::lines(status, self.paint)?,
            (Some(View::Configuration), None) => {
                tables::configurations(&status.configurations, now).lines(self.paint)?
            }
            (Some(View::Configuration), Some(name)) => {
                let view = configuration::find(status, name)?;
                configuration::lines(status, view, now, self.all, self.paint)?
            }
        };
        let mut text = lines.join("\n");
        text.push('\n');
        if self.live && !terminal::is_terminal() {
            // An empty line separates consecutive versions.
            text.push('\n');
        }
        Ok(text)
    }
}

/// Returns the status without the fields that change at every call.
fn essence(status: &Status) -> Status {
    let mut status = status.clone();
    for session in status
        .configurations
        .iter_mut()
        .flat_map(|configuration| &mut configuration.sessions)
    {
        session.last_call = None;
        session.events.clear();
        session.wall_ms = 0.0;
        session.cpu_ms = 0.0;
        session.memory_bytes = 0;
        session.next_ms = None;
    }
    status
}
