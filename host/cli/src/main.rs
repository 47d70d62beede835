//! The `leafhost` command: parses the command line, runs the subcommand and reports errors.

mod age;
mod agent;
mod args;
mod check;
mod completion;
mod controller;
mod failure;
mod folders;
mod handler;
mod handler_sources;
mod listen;
mod log;
mod manual;
mod migrate;
mod runtime;
mod scheduler;
mod select;
mod signals;
mod status;
mod table;
mod terminal;
mod version;
mod webhook;

use std::process::ExitCode;

use args::Command;
use clap_complete::CompleteEnv;

fn main() -> ExitCode {
    CompleteEnv::with_factory(args::definition)
        .var(manual::COMPLETE)
        .complete();
    let command = args::parse(std::env::args_os()).unwrap_or_else(|error| error.exit());
    let result = match command {
        Command::Agent(args) => agent::run(*args),
        Command::Controller(args) => controller::run(&args),
        Command::Scheduler(args) => scheduler::run(*args),
        Command::Select(args) => select::run(&args),
        Command::Webhook(args) => webhook::run(*args),
        Command::Status(args) => status::run(args),
        Command::Check(args) => check::run(&args),
        Command::Handler(command) => handler::run(command),
        Command::Migrate(command) => migrate::run(command),
        Command::Crds => terminal::print(leafhost_k8s::crd::YAML).map_err(Into::into),
        Command::Completions { shell } => manual::completions(&shell),
        Command::Version => version::print(),
        Command::Man { dir } => manual::pages(&dir),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}
