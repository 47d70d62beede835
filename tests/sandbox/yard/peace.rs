//! Whatever is done to the agent: the handlers' devices stay, and the neighbour is called in time.

use std::fs;

use anyhow::{Context, Result, ensure};
use leafhost_tests::wait::eventually;
use serde_json::Value;

use super::{LATE, NEIGHBOURS, Yard, configuration};

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
        let mut tries = 0;
        loop {
            let (calls_before, in_time_before) = self.calls()?;
            act(self).with_context(|| self.home.log())?;
            eventually("the neighbour is called on", || {
                let (calls, _) = self.calls()?;
                ensure!(calls >= calls_before + 6.0, "{calls} calls");
                Ok(())
            })?;
            let (calls, in_time) = self.calls()?;
            let now = self.published("neighbour", NEIGHBOURS)?;
            ensure!(now == self.before, "the neighbour's devices are others");
            let now = self.published("hostile", self.deeds)?;
            let stayed = mine.iter().all(|instance| now.contains(instance));
            ensure!(stayed, "the hostile handler's devices are others");
            let late = (calls - calls_before) - (in_time - in_time_before);
            if late <= 0.0 {
                return Ok(());
            }
            tries += 1;
            ensure!(
                tries < 3,
                "{late} of the neighbour's calls began more than {LATE} s late"
            );
        }
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
