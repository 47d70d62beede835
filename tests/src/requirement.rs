//! Requirements of a test on the machine, with the command that installs them.

use std::fmt;
use std::path::Path;

use anyhow::{Result, bail};

/// Requirement of a test that this machine lacks.
#[derive(Debug, Clone)]
pub struct Missing {
    /// Description of the requirement.
    pub what: String,
    /// Command that installs it.
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

/// Returns the first missing file of these.
pub fn files(paths: &[&str], command: &'static str) -> Option<Missing> {
    paths
        .iter()
        .find(|path| !Path::new(path).exists())
        .map(|path| Missing {
            what: (*path).to_owned(),
            command,
        })
}

/// Returns a requirement if the test does not run as root, with the given command.
pub fn root(command: &'static str) -> Option<Missing> {
    (!nix::unistd::geteuid().is_root()).then(|| Missing {
        what: "root".to_owned(),
        command,
    })
}

/// Returns true if the test must be skipped; fails with `CI=true`.
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
