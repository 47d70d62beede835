//! `leafhost handler serve`: runs a component as a handler built for Akri, which registers with the agent of its node.

use anyhow::{Context as _, Result};
use leafhost_core::ports::Loader as _;
use leafhost_core::tasks::Tasks;
use leafhost_external::serve::{Config, availability, serve};
use tokio::sync::watch;

use super::{open, run::input};
use crate::args::ServeArgs;
use crate::folders;
use crate::log;
use crate::runtime::block_on;
use crate::signals::Signals;

pub fn run(args: &ServeArgs) -> Result<()> {
    let _log = log::start(args.log.log_format, &args.log.log_level)?;
    let node = folders::node_name(args.node_name.as_deref())?;
    let folder = &args.external_handlers_dir;
    let folder = std::fs::canonicalize(folder).with_context(|| {
        format!(
            "cannot use the folder {}, which the agent creates; start the agent, or give its folder with --external-handlers-dir DIR",
            folder.display()
        )
    })?;
    let source = open::read(&args.file, args.grants.as_deref())?;
    block_on(async {
        let mut signals = Signals::new()?;
        let runtime = open::runtime(&args.compiler, true)?;
        let handler = runtime.load(&source).await?;
        for warning in &handler.facts().warnings {
            tracing::warn!(warning, "handler serves with a warning");
        }
        let mut tasks = Tasks::default();
        let availability = args.availability_file.clone().map(|file| {
            let shown = file.display().to_string();
            availability::follow(file, &mut tasks).with_context(|| {
                format!("cannot follow {shown}; give a file in an existing folder")
            })
        });
        let is_available = availability.transpose()?;
        let is_available = is_available.unwrap_or_else(|| watch::channel(true).1);
        let config = Config {
            folder,
            node,
            configuration: input::stand_in(&handler.facts().description.name)?,
            is_available,
        };
        tokio::select! {
            error = serve(config, handler) => Err(error.into()),
            error = tasks.ended() => Err(error.into()),
            signal = signals.next() => {
                tracing::info!(signal, "the handler stops");
                Ok(())
            }
        }
    })
}
