//! Requirements of a test on the machine, with the command that installs them.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Result, bail};

/// Variable with the file to which `tests/run.sh` lets tests write why they are skipped.
const SKIPPED: &str = "LEAFHOST_SKIPPED";

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
    if let Some(list) = std::env::var_os(SKIPPED) {
        let mut list = OpenOptions::new().create(true).append(true).open(list)?;
        list.write_all(format!("{missing}\n").as_bytes())?;
    }
    Ok(true)
}
