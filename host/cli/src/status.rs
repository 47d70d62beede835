//! `leafhost status`: requests the status from the running agent and shows it.

use anyhow::{Context as _, Result};
use jiff::Timestamp;
use leafhost_agent::status::Status;
use leafhost_core::instance::Instance;

use crate::args::{StatusArgs, View};
use crate::failure::Usage;
use crate::folders::User;
use crate::runtime::block_on;
use crate::terminal::{self, Output, Paint};

pub mod client;
pub mod configuration;
pub mod podman;
pub mod tables;

mod instance;
mod kubelet;
mod overview;
mod page;
mod slots;
mod watch;

#[cfg(test)]
mod tests;

/// Flags of the command line, and the colours of its output.
#[derive(Debug)]
struct Request {
    args: StatusArgs,
    paint: Paint,
}

pub fn run(args: StatusArgs) -> Result<()> {
    let misplaced = match args.view {
        Some(View::Configuration) => args.unhealthy.then_some("--unhealthy needs `instances`"),
        Some(View::Instances) => args.all.then_some("--all needs `configuration`"),
        Some(View::Instance) if args.name.is_none() => {
            Some("`instance` needs NAME; `instances` shows all of them")
        }
        Some(View::Handlers | View::Slots | View::Resources) | None if args.name.is_some() => {
            Some("NAME can only follow `configuration`, `instance` or `instances`")
        }
        _ if args.unhealthy => Some("--unhealthy needs `instances`"),
        _ => args.all.then_some("--all needs `configuration`"),
    };
    if let Some(misplaced) = misplaced {
        return Err(Usage(misplaced.to_owned()).into());
    }
    let (agent, state_dir) = (args.agent.as_deref(), args.state_dir.as_deref());
    let search = client::Search::new(agent, state_dir, &User::current());
    if args.ready {
        return block_on(search.ready());
    }
    if args.live {
        return block_on(search.live());
    }
    let request = Request {
        args,
        paint: Paint::stdout(),
    };
    if request.args.watch {
        return block_on(watch::run(&search, |newest| {
            let frame = newest.as_ref().map_err(Clone::clone).and_then(|status| {
                let frame = request.frame(status, Timestamp::now());
                frame.map_err(|error| format!("{error:#}"))
            });
            frame.unwrap_or_else(|error| request.trouble(&error))
        }));
    }
    let answer = block_on(search.status(None))?
        .context("the agent answered \"not changed\" to a request that does not ask for changes")?;
    let text = request.render(&answer.status, Timestamp::now())?;
    Ok(terminal::print(&text)?)
}

impl Request {
    fn frame(&self, status: &Status, now: Timestamp) -> Result<watch::Frame> {
        let text = self.render(status, now)?;
        // For one Configuration every call matters; for the other views only changed results do.
        let key = match self.args.view {
            Some(View::Configuration) if self.args.name.is_some() => serde_json::to_string(status)?,
            _ => serde_json::to_string(&essence(status))?,
        };
        Ok(watch::Frame { text, key })
    }

    fn trouble(&self, error: &str) -> watch::Frame {
        let text = match self.args.output {
            Output::Table => {
                let width = terminal::is_terminal().then(|| terminal::size().width);
                let lines = terminal::wrap(&terminal::escape(error), width.unwrap_or(usize::MAX));
                format!("{}\n(trying again every second)\n", lines.join("\n"))
            }
            Output::Json => format!("{}\n", serde_json::json!({"error": error})),
            Output::Yaml => format!("---\nerror: {}\n", serde_json::json!(error)),
        };
        watch::Frame {
            key: text.clone(),
            text,
        }
    }

    fn render(&self, status: &Status, now: Timestamp) -> Result<String> {
        match self.args.output {
            Output::Table => self.table(status, now),
            output => terminal::document(output, self.args.watch, &self.value(status)?),
        }
    }

    fn value(&self, status: &Status) -> Result<serde_json::Value> {
        Ok(match (self.args.view, &self.args.name) {
            (None, _) => serde_json::to_value(status)?,
            (Some(View::Handlers), _) => serde_json::to_value(&status.handlers)?,
            (Some(View::Instances), _) => serde_json::to_value(self.instances(status)?)?,
            (Some(View::Instance), name) => {
                let name = name.as_deref().unwrap_or_default();
                serde_json::to_value(instance::find(status, name)?)?
            }
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
        let name = self.args.name.as_deref();
        let view = name
            .map(|name| configuration::find(status, name))
            .transpose()?;
        let instances = tables::of(status, view);
        Ok(instances
            .filter(|instance| !self.args.unhealthy || tables::is_troubled(instance, &status.node))
            .collect())
    }

    fn table(&self, status: &Status, now: Timestamp) -> Result<String> {
        let size = (self.args.watch && terminal::is_terminal()).then(terminal::size);
        let width = size.map(|size| size.width);
        let lines = match (self.args.view, &self.args.name) {
            (None, _) => overview::lines(status, now, self.paint, size),
            (Some(View::Handlers), _) => tables::handlers(&status.handlers, now).lines(self.paint),
            (Some(View::Instances), _) => {
                tables::instances(status, &self.instances(status)?, now, width).lines(self.paint)
            }
            (Some(View::Instance), name) => {
                let name = name.as_deref().unwrap_or_default();
                let instance = instance::find(status, name)?;
                instance::lines(status, instance, now, width, self.paint)
            }
            (Some(View::Slots), _) => slots::table(status).lines(self.paint),
            (Some(View::Resources), _) => kubelet::lines(status, self.paint),
            (Some(View::Configuration), None) => {
                tables::configurations(&status.configurations, now).lines(self.paint)
            }
            (Some(View::Configuration), Some(name)) => {
                let view = configuration::find(status, name)?;
                configuration::lines(status, view, now, self.args.all, width, self.paint)
            }
        };
        let mut text = lines.join("\n");
        text.push('\n');
        if self.args.watch && !terminal::is_terminal() {
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
