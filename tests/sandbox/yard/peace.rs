//! Whatever is done to the agent: the handlers' devices stay, and the neighbour is called in time.

use std::fs;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{Yard, configuration};

impl Yard {
    /// Gives the hostile handler one Configuration more, and waits until it has answered.
    pub fn serve(&mut self, details: &str) -> Result<String> {
        let name = format!("hostile-{}", self.deeds);
        self.deeds += 1;
        let text = configuration(&name, "hostile", details);
        self.home
            .write(&format!("configurations/{name}.yaml"), text)?;
        self.published("hostile", self.deeds)?;
        Ok(name)
    }

    /// Has `act` done, again if the neighbour was late meanwhile: a machine that is busy elsewhere makes a call late as well.
    pub fn bears(&mut self, mut act: impl FnMut(&mut Self) -> Result<()>) -> Result<()> {
        let mine = self.published("hostile", self.deeds)?;
        self.until_in_time(|yard| {
            let before = yard.calls()?;
            act(yard).with_context(|| yard.home.log())?;
            Ok((before, mine.clone()))
        })
    }

    /// Waits until whoever looks at the status reads `words` of a file.
    pub fn tells(&self, words: &str) -> Result<()> {
        self.home
            .until(&format!("{words:?} is told"), |status| {
                self.told(status).contains(words)
            })
            .map(drop)
    }

    /// Waits until nothing is wrong with any file.
    pub fn is_content(&self) -> Result<()> {
        self.home
            .until("nothing is wrong any more", |status| {
                self.told(status).is_empty()
            })
            .map(drop)
    }

    /// The most memory the agent has had, in MiB (`proc_pid_status(5)`).
    pub fn peak_mib(&self) -> Result<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.home.pid()?))?;
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let peak = peak.and_then(|peak| peak.trim().strip_suffix(" kB"));
        Ok(peak.context("no VmHWM")?.parse::<u64>()? >> 10)
    }

    /// What is said of handlers, and of files in the home.
    fn told(&self, status: &Value) -> String {
        let home = self.home.path().to_string_lossy();
        let problems = status.get("problems").and_then(Value::as_array);
        let problems = problems.into_iter().flatten().filter_map(Value::as_str);
        let handlers = status.get("handlers").and_then(Value::as_array);
        let errors = handlers.into_iter().flatten();
        let errors = errors.filter_map(|handler| handler.get("lastError")?.as_str());
        let all = problems.filter(|problem| problem.contains(&*home));
        all.chain(errors).collect::<Vec<_>>().join("\n")
    }
}

/// The native code the agent has kept, by file name.
pub fn native(yard: &Yard) -> Result<Vec<std::path::PathBuf>> {
    let folder = yard.home.path().join("state/native");
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|suffix| suffix == "native") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
