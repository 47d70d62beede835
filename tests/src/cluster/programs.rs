//! Programs of a cluster: their paths, and a process with a log file.

use std::fmt::Write as _;
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use sha2::{Digest, Sha256};

use crate::program::source_tree;
use crate::requirement::{self, Missing};
use crate::wait::eventually;

const SETUP: &str = "make setup-cluster";
/// Go modules of all programs.
const MODULES: [&str; 4] = ["kubernetes", "containerd", "helm", "helm3"];
/// Go module of the older kubelet.
const OLDER_KUBELET: &str = "kubelet-1.35";

/// Returns what a cluster needs and this machine lacks.
pub(super) fn missing() -> Option<Missing> {
    let installed = [
        "/usr/bin/busybox",
        "/usr/bin/etcd",
        "/usr/bin/nsenter",
        "/usr/bin/openssl",
        "/usr/lib/cni/bridge",
        "/usr/sbin/runc",
        "/usr/sbin/ip",
        "/usr/sbin/iptables",
    ];
    requirement::root("sudo -E make test-all")
        .or_else(|| requirement::files(&installed, SETUP))
        .or_else(|| not_built("Kubernetes", folder(), SETUP))
}

/// Returns what nodes with the older kubelet need in addition and this machine lacks.
pub(super) fn missing_older_kubelet() -> Option<Missing> {
    not_built(
        "a kubelet of 1.35",
        built(&[OLDER_KUBELET]),
        "make setup-soak",
    )
}

fn not_built(what: &str, folder: Result<PathBuf>, command: &'static str) -> Option<Missing> {
    let what = match folder {
        Ok(folder) if folder.is_dir() => return None,
        Ok(folder) => format!("{what} in {}", folder.display()),
        Err(error) => format!("the folder of {what} ({error:#})"),
    };
    Some(Missing { what, command })
}

/// Returns the folder of all programs.
pub(super) fn folder() -> Result<PathBuf> {
    built(&MODULES)
}

/// Returns the path of the kubelet of 1.35.
pub(super) fn older_kubelet() -> Result<PathBuf> {
    Ok(built(&[OLDER_KUBELET])?.join("kubelet"))
}

/// Returns the folder that `tests/cluster/build.sh` builds for the current state of these Go modules.
fn built(modules: &[&str]) -> Result<PathBuf> {
    let folder = source_tree().join("tests/cluster/go");
    let mut digest = Sha256::new();
    for module in modules {
        for file in ["go.mod", "go.sum"] {
            let path = folder.join(module).join(file);
            let text =
                fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?;
            digest.update(text);
        }
    }
    let mut state = hex(&digest.finalize());
    state.truncate(16);
    let cache = match std::env::var_os("LEAFHOST_CLUSTER") {
        Some(cache) => PathBuf::from(cache),
        None => PathBuf::from(std::env::var_os("HOME").context("HOME is not set")?)
            .join(".cache/leafhost/cluster"),
    };
    Ok(cache.join(state))
}

pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Running program.
#[derive(Debug)]
pub(super) struct Running {
    name: String,
    log: PathBuf,
    child: Child,
}

impl Running {
    /// Starts the program; its output is appended to `<logs>/<name>.log`.
    pub fn start(name: &str, logs: &Path, command: &mut Command) -> Result<Self> {
        let path = logs.join(name).with_extension("log");
        let log = File::options()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            // Ctrl-C must reach only the process that started the cluster; the cluster ends after it, in order.
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            log: path,
            child,
        })
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// Waits until `look` returns `Ok`; fails early if the program ends.
    pub fn until<T>(&mut self, what: &str, mut look: impl FnMut() -> Result<T>) -> Result<T> {
        let mut ended = None;
        let found = eventually(what, || {
            ended = self.child.try_wait()?;
            if ended.is_some() {
                return Ok(None);
            }
            look().map(Some)
        });
        let log = || format!("{} says:\n{}", self.name, tail(&self.log, 20));
        found
            .with_context(log)?
            .with_context(|| format!("ended: {ended:?}"))
            .with_context(log)
    }

    /// Sends a signal to the program and waits for its end.
    pub fn end(mut self, signal: Signal) -> Result<()> {
        let pid = Pid::from_raw(i32::try_from(self.child.id())?);
        kill(pid, signal).with_context(|| format!("cannot signal {}", self.name))?;
        eventually(&format!("{} ends", self.name), || {
            ensure!(self.child.try_wait()?.is_some(), "it still runs");
            Ok(())
        })
    }
}

/// Program of the control plane that a test may stop for a while.
pub struct Program {
    name: &'static str,
    logs: PathBuf,
    running: Mutex<(Command, Option<Running>)>,
}

impl Program {
    pub(super) fn start(name: &'static str, logs: &Path, mut command: Command) -> Result<Self> {
        let running = Running::start(name, logs, &mut command)?;
        Ok(Self {
            name,
            logs: logs.to_owned(),
            running: Mutex::new((command, Some(running))),
        })
    }

    /// Waits until `look` returns `Ok`; fails early if the program ends.
    pub(super) fn until<T>(&self, what: &str, look: impl FnMut() -> Result<T>) -> Result<T> {
        let mut running = self.lock();
        let running = running.1.as_mut();
        running
            .with_context(|| format!("{} does not run", self.name))?
            .until(what, look)
    }

    /// Returns the PID of the program.
    pub fn pid(&self) -> Result<u32> {
        let running = self.lock();
        let running = running.1.as_ref();
        let running = running.with_context(|| format!("{} does not run", self.name))?;
        Ok(running.pid())
    }

    /// Kills the program and waits for its end.
    pub fn kill(&self) -> Result<()> {
        let running = self.lock().1.take();
        running
            .with_context(|| format!("{} does not run", self.name))?
            .end(Signal::SIGKILL)
    }

    /// Starts the program again with the same command; does not wait until it answers.
    pub fn start_again(&self) -> Result<()> {
        let (command, running) = &mut *self.lock();
        ensure!(running.is_none(), "{} runs", self.name);
        *running = Some(Running::start(self.name, &self.logs, command)?);
        Ok(())
    }

    /// Sends the program a signal, such as `SIGSTOP`.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        let running = &self.lock().1;
        let pid = running.as_ref().context("it does not run")?.pid();
        kill(Pid::from_raw(i32::try_from(pid)?), signal)
            .with_context(|| format!("cannot signal {}", self.name))
    }

    fn lock(&self) -> MutexGuard<'_, (Command, Option<Running>)> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the last lines of a log.
pub(super) fn tail(log: &Path, lines: usize) -> String {
    let text = match fs::read(log) {
        Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
        Err(error) => return format!("cannot read {}: {error}", log.display()),
    };
    let all: Vec<&str> = text.lines().collect();
    let from = all.len().saturating_sub(lines);
    all.get(from..).unwrap_or_default().join("\n")
}
