//! Helper program of a test: it prints `ready`, executes the lines of its input, and ends when its input ends.
//!
//! So it ends with the test, however the test ends. This module also finds the programs of other implementations.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;

use anyhow::{Context, Result, ensure};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::NamedTempFile;

use crate::lan::Host;
use crate::program::{self, source_tree};
use crate::requirement::{self, Missing};
use crate::wait::{TIMEOUT, within};

const SETUP: &str = "make setup-test";

/// Running peer.
#[derive(Debug)]
pub struct Peer {
    name: String,
    child: Child,
    input: Option<ChildStdin>,
    lines: Receiver<String>,
    reader: Option<JoinHandle<()>>,
    errors: NamedTempFile,
}

impl Peer {
    /// Starts a program and waits until it prints `ready`.
    pub fn start(command: Command) -> Result<Self> {
        let peer = Self::begin(command)?;
        let line = peer.line()?;
        ensure!(line == "ready", "{} said {line:?}", peer.name);
        Ok(peer)
    }

    /// Starts a program without waiting for `ready`.
    pub fn begin(mut command: Command) -> Result<Self> {
        // Command line, to start the program by hand.
        let name = format!("{command:?}");
        let errors = NamedTempFile::new().context("cannot create a file")?;
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(errors.reopen()?)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot start {name}"))?;
        let input = child.stdin.take();
        let out = BufReader::new(child.stdout.take().context("no output")?);
        let (sender, lines) = mpsc::channel();
        let reader = std::thread::spawn(move || {
            for line in out.lines().map_while(Result::ok) {
                // The thread must read the output even after the receiver was dropped.
                let _ = sender.send(line);
            }
        });
        Ok(Self {
            name,
            child,
            input,
            lines,
            reader: Some(reader),
            errors,
        })
    }

    /// Waits for the next line of output and returns it.
    pub fn line(&self) -> Result<String> {
        self.lines.recv_timeout(TIMEOUT).with_context(|| {
            let errors = std::fs::read_to_string(self.errors.path()).unwrap_or_default();
            format!("{} says nothing; its errors:\n{errors}", self.name)
        })
    }

    /// Sends the peer a line.
    pub fn tell(&mut self, line: &str) -> Result<()> {
        let input = self.input.as_mut().context("it was ended")?;
        writeln!(input, "{line}").with_context(|| format!("{} does not listen", self.name))
    }

    /// Sends a line and returns the answer.
    pub fn ask(&mut self, line: &str) -> Result<String> {
        self.tell(line)?;
        self.line()
    }

    /// Closes the peer's input, waits for its end and returns the remaining output.
    pub fn end(mut self) -> Result<Vec<String>> {
        drop(self.input.take());
        let status = within(TIMEOUT, "the peer ends", || {
            self.child.try_wait()?.context("it still runs")
        })?;
        let errors = std::fs::read_to_string(self.errors.path()).unwrap_or_default();
        ensure!(
            status.success(),
            "{} ended with {status}\n{errors}",
            self.name
        );
        if let Some(reader) = self.reader.take() {
            // The thread ends with the output.
            let _ = reader.join();
        }
        Ok(self.lines.try_iter().collect())
    }

    /// Kills the peer; fails if it had ended before.
    pub fn kill(mut self) -> Result<()> {
        self.signal(Signal::SIGKILL)?;
        let status = self.child.wait()?;
        ensure!(
            status.signal() == Some(9),
            "{} ended before: {status}",
            self.name
        );
        Ok(())
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        let group = Pid::from_raw(i32::try_from(self.child.id())?);
        killpg(group, signal).with_context(|| format!("cannot signal {}", self.name))
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // A process that has ended cannot be signalled.
        if matches!(self.child.try_wait(), Ok(None)) {
            let _ = self.signal(Signal::SIGKILL);
            let _ = self.child.wait();
        }
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
    }
}

/// Returns what this machine lacks of the programs of other implementations, and of networks for them.
pub fn missing() -> Option<Missing> {
    let installed = || -> Result<Option<Missing>> {
        let files = [
            python_folder()?.join("installed"),
            node_folder()?.join("installed"),
        ];
        let files = files
            .each_ref()
            .map(|file| file.to_str().unwrap_or("a file"));
        Ok(requirement::files(&["/usr/sbin/wsdd"], SETUP)
            .or_else(|| requirement::files(&files, SETUP)))
    };
    crate::lan::missing().or_else(|| {
        installed().unwrap_or_else(|error| {
            Some(Missing {
                what: format!("the folder of peers ({error:#})"),
                command: SETUP,
            })
        })
    })
}

/// Returns a command that runs a Python program of `tests/peers/python` on a host.
pub fn python(host: &Host, script: &str) -> Result<Command> {
    let mut command = host.command(python_folder()?.join("bin/python"));
    command.arg(
        source_tree()
            .join("tests/peers/python")
            .join(script)
            .with_extension("py"),
    );
    // Leave no bytecode files in the source tree.
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    Ok(command)
}

/// Returns a command that runs a Node program of `tests/peers/node` on a host.
pub fn node(host: &Host, script: &str) -> Result<Command> {
    let mut command = host.command("node");
    command
        .arg(
            source_tree()
                .join("tests/peers/node")
                .join(script)
                .with_extension("mjs"),
        )
        .env("LEAFHOST_NODE", node_folder()?);
    Ok(command)
}

/// Returns a command that runs a program of `tests/peers/rust` on a host, such as `leafhost-camera`.
pub fn rust(host: &Host, name: &str) -> Result<Command> {
    let path = program::build_folder()?.join(name);
    ensure!(
        path.is_file(),
        "{} does not exist: run `cargo build -p leafhost-peers --features peers` first",
        path.display()
    );
    Ok(host.command(path))
}

/// Returns a folder below the user's cache, or the one that the environment variable names.
fn cached(variable: &str, name: &str) -> Result<PathBuf> {
    if let Some(place) = std::env::var_os(variable) {
        return Ok(place.into());
    }
    let home = std::env::var_os("HOME").context("HOME is not set")?;
    Ok(PathBuf::from(home).join(".cache/leafhost").join(name))
}

/// Returns the folder of the Python packages that `make setup-test` installs: a virtual environment.
pub fn python_folder() -> Result<PathBuf> {
    cached("LEAFHOST_PYTHON", "python")
}

/// Returns the path of the Go handler that `make setup-test` builds.
pub fn go_handler() -> Result<PathBuf> {
    Ok(cached("LEAFHOST_GO", "go")?.join("handler"))
}

/// Returns the folder of the Node packages that `make setup-test` installs.
pub fn node_folder() -> Result<PathBuf> {
    cached("LEAFHOST_NODE", "node")
}
