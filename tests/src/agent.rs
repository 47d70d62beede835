//! An agent with its own folder: in standalone mode, or in a cluster.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use tempfile::TempDir;

use crate::cluster::Node;
use crate::lan::Host;
use crate::mounts::Mounts;
use crate::program::{self, Ended};
use crate::wait::{eventually, within};

/// Folder with Configurations, handlers and state, and the agent that uses it.
pub struct Home {
    folder: TempDir,
    cdi: PathBuf,
    kubelet: Option<PathBuf>,
    /// Kubeconfig of the cluster that holds Configurations and Instances; `None` if they are files.
    cluster: Option<PathBuf>,
    node: String,
    enter: Enter,
    environment: Vec<(String, OsString)>,
    child: Option<Child>,
}

/// Builds the command that runs a program where the agent runs.
type Enter = Box<dyn Fn(&Path) -> Result<Command> + Send + Sync>;

impl Home {
    /// Creates an empty home.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot create a folder")?;
        for name in ["configurations", "handlers"] {
            fs::create_dir(folder.path().join(name))?;
        }
        Ok(Self {
            cdi: folder.path().join("cdi"),
            folder,
            kubelet: None,
            cluster: None,
            node: "node-a".to_owned(),
            enter: Box::new(|program| Ok(Command::new(program))),
            environment: Vec::new(),
            child: None,
        })
    }

    /// Creates a copy with the same files.
    pub fn copy(&self) -> Result<Self> {
        let copy = Self::new()?;
        let (from, to) = (self.path().join("."), copy.path());
        let from: [&OsStr; 3] = ["-a".as_ref(), from.as_ref(), to.as_ref()];
        program::run("cp", from)?.good()?;
        Ok(copy)
    }

    /// Creates a home whose agent runs on a node of a cluster and serves its kubelet.
    pub fn on(node: &'static Node) -> Result<Self> {
        let mut home = Self::new()?;
        home.kubelet = Some("/var/lib/kubelet".into());
        node.name().clone_into(&mut home.node);
        home.enter = Box::new(|program| node.enter(program));
        Ok(home)
    }

    /// Makes the next agent use the Configurations and Instances of the cluster of this kubeconfig. Its handlers stay in this home.
    pub fn join(&mut self, kubeconfig: &Path) {
        self.cluster = Some(kubeconfig.to_owned());
    }

    /// Sets the node name of the next agent.
    pub fn set_node(&mut self, node: &str) {
        node.clone_into(&mut self.node);
    }

    /// Creates a home whose agent runs on a host of a network.
    pub fn on_host(host: &Host, node: &str) -> Result<Self> {
        let mut home = Self::new()?;
        node.clone_into(&mut home.node);
        let host = host.clone();
        home.enter = Box::new(move |program| Ok(host.command(program)));
        Ok(home)
    }

    /// Makes the next agent serve the kubelet with this folder; by default it serves none.
    pub fn serve_kubelet(&mut self, folder: &Path) {
        self.kubelet = Some(folder.to_owned());
    }

    /// Starts the next agent with a soft limit of `ulimit`: `n` for open files, `v` for KiB of address space.
    pub fn limit(&mut self, what: char, limit: u32) {
        self.enter = Box::new(move |program| {
            let mut command = Command::new("sh");
            let script = format!("ulimit -S{what} {limit} && exec \"$0\" \"$@\"");
            command.args(["-c", &script]).arg(program);
            Ok(command)
        });
    }

    /// Runs the next agent in this mount namespace.
    pub fn live_in(&mut self, mounts: &Arc<Mounts>) {
        let mounts = Arc::clone(mounts);
        self.enter = Box::new(move |program| Ok(mounts.command(program)));
    }

    /// Sets the environment variables of the next agent.
    pub fn set_environment(&mut self, environment: &[(&str, &OsStr)]) {
        let set = |(name, value): &(&str, &OsStr)| ((*name).to_owned(), (*value).to_owned());
        self.environment = environment.iter().map(set).collect();
    }

    /// Returns the agent's response to a GET of `path` at its socket.
    pub fn get(&self, path: &str) -> Result<String> {
        let mut get = (self.enter)(Path::new("curl"))?;
        get.args(["-sSf", "--unix-socket"])
            .arg(self.path().join("state/agent.sock"))
            .arg(format!("http://localhost{path}"));
        program::finish(get)?.good()
    }

    /// Returns the address at which the agent listens, from its log.
    pub fn address(&self) -> Result<String> {
        address_in(&self.log()).context("no address")
    }

    /// Returns the path of the agent's log file.
    pub fn log_file(&self) -> PathBuf {
        self.path().join("log")
    }

    /// Returns the process ID of the agent.
    pub fn pid(&self) -> Result<u32> {
        Ok(self.child.as_ref().context("no agent runs")?.id())
    }

    /// Returns the folder of this home.
    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the folder of CDI specs, which is in this home unless [`Self::publish_in`] changes it.
    pub fn cdi(&self) -> &Path {
        &self.cdi
    }

    /// Makes the next agent write CDI specs into this folder.
    pub fn publish_in(&mut self, folder: &Path) {
        folder.clone_into(&mut self.cdi);
    }

    /// Adds one of the handlers of this repository with its grants.
    pub fn add_handler(&self, name: &str) -> Result<()> {
        let wasm = program::handler(name)?;
        for file in [wasm.with_extension("grants.yaml"), wasm] {
            let to = self
                .path()
                .join("handlers")
                .join(file.file_name().context("no file name")?);
            fs::copy(&file, to).with_context(|| format!("cannot copy {}", file.display()))?;
        }
        Ok(())
    }

    /// Writes a file below the folder of this home.
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> Result<()> {
        let path = self.path().join(name);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent)?;
        }
        fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Removes a file below the folder of this home.
    pub fn remove(&self, name: &str) -> Result<()> {
        fs::remove_file(self.path().join(name)).with_context(|| format!("cannot remove {name}"))
    }

    /// Returns the command that runs the agent with additional arguments.
    pub fn command(&self, more: &[&str]) -> Result<Command> {
        let mut command = (self.enter)(&program::leafhost()?)?;
        match &self.kubelet {
            Some(folder) => command.arg("agent").arg("--kubelet-dir").arg(folder),
            None => command.args(["agent", "--no-kubelet"]),
        };
        match &self.cluster {
            Some(kubeconfig) => command
                .env("KUBECONFIG", kubeconfig)
                .arg("--handlers-dir")
                .arg(self.path().join("handlers")),
            None => command.arg("--standalone").arg(self.path()),
        };
        // Agents of several nodes share this machine, so none of them serves external handlers.
        if self.cluster.is_some() && !more.contains(&"--external-handlers-dir") {
            command.arg("--no-external-handlers");
        }
        command
            .envs(self.environment.iter().cloned())
            .arg("--state-dir")
            .arg(self.path().join("state"))
            .arg("--cdi-dir")
            .arg(self.cdi())
            .args(["--node-name", &self.node])
            .args(["--listen", "127.0.0.1:0", "--log-format", "text"])
            .args(more);
        Ok(command)
    }

    /// Starts the agent with additional arguments and waits until it is ready.
    pub fn start(&mut self, more: &[&str]) -> Result<()> {
        ensure!(self.child.is_none(), "the agent runs already");
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_file())?;
        let child = self
            .command(more)?
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start the agent")?;
        self.child = Some(child);
        eventually("the agent answers", || {
            let ended = self
                .child
                .as_mut()
                .map(Child::try_wait)
                .transpose()?
                .flatten();
            ensure!(
                ended.is_none(),
                "the agent ended: {ended:?}\n{}",
                self.log()
            );
            self.status().map(drop)
        })
        .with_context(|| self.log())
    }

    /// Stops the agent with a signal; returns its exit code.
    pub fn stop(&mut self, signal: Signal) -> Result<Option<i32>> {
        let mut child = self.child.take().context("no agent runs")?;
        kill(Pid::from_raw(i32::try_from(child.id())?), signal)
            .context("cannot signal the agent")?;
        let status = within(Duration::from_secs(20), "the agent ends", || {
            child.try_wait()?.context("it still runs")
        });
        if status.is_err() {
            child.kill()?;
            child.wait()?;
        }
        Ok(status?.code())
    }

    /// Returns the agent's log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_file()).unwrap_or_default()
    }

    /// Runs `leafhost` with `--state-dir` of this home.
    pub fn leafhost(&self, arguments: &[&str]) -> Result<Ended> {
        let state = self.path().join("state");
        let mut command = (self.enter)(&program::leafhost()?)?;
        command.args(arguments).arg("--state-dir").arg(state);
        program::finish(command)
    }

    /// Returns the status document of the agent.
    pub fn status(&self) -> Result<Value> {
        let text = self.leafhost(&["status", "-o", "json"])?.good()?;
        serde_json::from_str(&text).context("the status is no JSON")
    }

    /// Waits until there are `count` Instances and returns them.
    pub fn instances(&self, count: usize) -> Result<Vec<Value>> {
        eventually(&format!("{count} Instances"), || {
            let status = self.status()?;
            let instances = status
                .get("instances")
                .and_then(Value::as_array)
                .context("no instances")?;
            ensure!(
                instances.len() == count,
                "{} Instances, {status:#}",
                instances.len()
            );
            Ok(instances.clone())
        })
        .with_context(|| self.log())
    }

    /// Waits until `holds` is true for the status document.
    pub fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
        eventually(what, || {
            let status = self.status()?;
            ensure!(holds(&status), "{status:#}");
            Ok(status)
        })
        .with_context(|| self.log())
    }
}

/// Returns the address at which the last agent of a log listens.
pub fn address_in(log: &str) -> Option<String> {
    let mut lines = log.lines().rev();
    let starts = lines.find(|line| line.contains("agent starts "))?;
    let (_, rest) = starts.split_once(" address=")?;
    rest.split(' ').next().map(str::to_owned)
}

impl Drop for Home {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
