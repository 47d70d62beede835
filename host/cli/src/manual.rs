//! Completion scripts and manual pages for packages, generated from the command line's definition.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::args::Cli;
use crate::terminal;

/// Prints a completion script.
pub fn completions(shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "leafhost", &mut script);
    Ok(terminal::print(&String::from_utf8_lossy(&script))?)
}

/// Writes one page a command (`leafhost.1`, `leafhost-agent.1`, …) into a folder, or prints the first one.
pub fn pages(dir: Option<&Path>) -> Result<()> {
    let command = Cli::command().disable_help_subcommand(true);
    let Some(dir) = dir else {
        let mut page = Vec::new();
        clap_mangen::Man::new(command).render(&mut page)?;
        return Ok(terminal::print(&String::from_utf8_lossy(&page))?);
    };
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("cannot write manual pages to {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_visible_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        pages(Some(dir.path())).unwrap();
        for page in [
            "leafhost.1",
            "leafhost-agent.1",
            "leafhost-status.1",
            "leafhost-handler-run.1",
        ] {
            let text = std::fs::read_to_string(dir.path().join(page)).unwrap();
            assert!(text.contains(".SH NAME"), "{page}");
        }
        assert!(!dir.path().join("leafhost-man.1").exists());
    }

    #[test]
    fn every_shell_completes_every_verb() {
        for shell in [Shell::Bash, Shell::Fish, Shell::Zsh] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "leafhost", &mut script);
            let script = String::from_utf8(script).unwrap();
            for verb in ["agent", "status", "check", "inspect"] {
                assert!(script.contains(verb), "{shell} {verb}");
            }
        }
    }
}
