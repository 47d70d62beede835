//! What a test needs from the machine, with the command that installs it.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

/// Something a test needs and this machine lacks.
#[derive(Debug, Clone)]
pub struct Missing {
    /// What is missing.
    pub what: String,
    /// The command that installs it.
    pub command: &'static str,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is missing, bring it with: {}",
            self.what, self.command
        )
    }
}

/// The first missing file of these.
pub fn files(paths: &[&str], command: &'static str) -> Option<Missing> {
    paths
        .iter()
        .find(|path| !Path::new(path).exists())
        .map(|path| Missing {
            what: (*path).to_owned(),
            command,
        })
}

/// Root, for the given command.
pub fn root(command: &'static str) -> Option<Missing> {
    (!nix::unistd::geteuid().is_root()).then(|| Missing {
        what: "root".to_owned(),
        command,
    })
}

/// Whether to skip the test; with `CI=true` that is an error.
pub fn lacks(missing: Option<Missing>) -> Result<bool> {
    let Some(missing) = missing else {
        return Ok(false);
    };
    if std::env::var("CI").is_ok_and(|ci| ci == "true") {
        bail!("{missing}");
    }
    eprintln!("skipped: {missing}");
    Ok(true)
}
