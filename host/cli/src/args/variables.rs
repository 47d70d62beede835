//! Environment variables of flags.

use clap::builder::BoolishValueParser;
use clap::{Arg, ArgAction, Command};

/// Prefix of every variable.
pub const PREFIX: &str = "LEAFHOST";
/// Programs that run until they are stopped; the variables of their flags name no command.
const PROGRAMS: [&str; 5] = [
    "LEAFHOST_AGENT",
    "LEAFHOST_CONTROLLER",
    "LEAFHOST_HANDLER_SERVE",
    "LEAFHOST_SCHEDULER",
    "LEAFHOST_WEBHOOK",
];
/// Flags that mean the same to every command, because they describe the machine or the cluster.
const SHARED: [&str; 8] = [
    "agent",
    "compile-timeout",
    "compiler",
    "handlers-dir",
    "node-name",
    "properties-namespaces",
    "sdk",
    "state-dir",
];

/// Lets each flag be set by an environment variable, too: `--node-name` is `LEAFHOST_NODE_NAME`. A flag that belongs to one call has a
/// variable with the name of its command, such as `LEAFHOST_STATUS_WATCH`, so that the environment of a program does not
/// change other commands. The variable of a switch may be `yes`, `off` and the like.
pub fn with_variables(command: Command, path: &str) -> Command {
    let name = |text: &str| text.to_uppercase().replace('-', "_");
    let with_variable = |arg: Arg| {
        let arg = match arg.get_long() {
            Some(long) => {
                let is_common = PROGRAMS.contains(&path) || SHARED.contains(&long);
                let prefix = if is_common { PREFIX } else { path };
                let variable = format!("{prefix}_{}", name(long));
                arg.env(variable)
            }
            None => arg,
        };
        match arg.get_action() {
            ArgAction::SetTrue => arg.value_parser(BoolishValueParser::new()),
            _ => arg,
        }
    };
    command.mut_args(with_variable).mut_subcommands(|command| {
        let path = format!("{path}_{}", name(command.get_name()));
        with_variables(command, &path)
    })
}
