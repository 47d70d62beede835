//! Completion scripts and manual pages for packages, generated from the command line's definition.

use std::path::Path;

use anyhow::{Context as _, Result};
use clap_complete::env::Shells;

use crate::args;
use crate::terminal;

/// Environment variable with which a script asks this program for completions.
pub const COMPLETE: &str = "LEAFHOST_COMPLETE";

/// Prints a completion script. The script asks this program, which gets names from the agent.
pub fn completions(shell: &str) -> Result<()> {
    Ok(terminal::print(&script(shell)?)?)
}

fn script(shell: &str) -> Result<String> {
    let shells = Shells::builtins();
    let shell = shells.completer(shell).context("unknown shell")?;
    let (mut script, name) = (Vec::new(), "leafhost");
    shell.write_registration(COMPLETE, name, name, name, &mut script)?;
    Ok(String::from_utf8(script)?)
}

/// Writes one page per command (`leafhost.1`, `leafhost-agent.1`, …) into a folder.
pub fn pages(dir: &Path) -> Result<()> {
    let command = args::definition().disable_help_subcommand(true);
    std::fs::create_dir_all(dir)
        .and_then(|()| clap_mangen::generate_to(command, dir))
        .with_context(|| format!("cannot write manual pages to {}", dir.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::SHELLS;

    #[test]
    fn every_visible_command_has_a_manual_page() {
        let dir = tempfile::tempdir().unwrap();
        pages(dir.path()).unwrap();
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
    fn every_shell_has_a_script_that_asks_this_program() {
        for shell in SHELLS {
            let script = script(shell).unwrap();
            assert!(script.contains(COMPLETE), "{shell}: {script}");
        }
    }
}
