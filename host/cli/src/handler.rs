//! `leafhost handler …`: commands for authors of handlers.

use anyhow::Result;

use crate::args::HandlerCommand;

pub mod guest_log;
pub mod open;

mod config_map;
mod inspect;
mod new;
mod run;
mod serve;

pub fn run(command: HandlerCommand) -> Result<()> {
    match command {
        HandlerCommand::New(args) => new::run(&args),
        HandlerCommand::Inspect(args) => inspect::run(&args),
        HandlerCommand::Configmap(args) => config_map::run(&args),
        HandlerCommand::Run(args) => run::run(&args),
        HandlerCommand::Serve(args) => serve::run(&args),
    }
}
