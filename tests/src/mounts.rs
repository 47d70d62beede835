//! Private mount namespace, in which disks can be small or read-only.
//!
//! It is invisible outside and ends with the process that holds it.

use std::ffi::OsStr;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, ensure};

use crate::program;
use crate::requirement::{self, Missing};

/// Returns what this machine lacks for a mount namespace.
pub fn missing() -> Option<Missing> {
    requirement::root("sudo -E make test-all")
}

/// Mount namespace.
#[derive(Debug)]
pub struct Mounts {
    holder: Child,
}

impl Mounts {
    /// Creates a namespace with a copy of the machine's mounts.
    pub fn new() -> Result<Self> {
        let mut holder = Command::new("unshare")
            .args(["--mount", "--propagation", "private"])
            .args(["sh", "-c", "echo; exec sleep infinity"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot run unshare")?;
        let mut line = [0];
        let begun = holder.stdout.as_mut().map(|out| out.read(&mut line));
        let mounts = Self { holder };
        ensure!(matches!(begun, Some(Ok(1))), "no mount namespace");
        Ok(mounts)
    }

    /// Returns a command that runs a program in the namespace.
    pub fn command(&self, program: &Path) -> Command {
        let mut command = Command::new("nsenter");
        let namespace = format!("--mount=/proc/{}/ns/mnt", self.holder.id());
        command.arg(namespace).arg(program);
        command
    }

    /// Runs `mount` with these arguments in the namespace.
    pub fn mount<A: AsRef<OsStr>>(&self, arguments: impl IntoIterator<Item = A>) -> Result<()> {
        let mut command = self.command(Path::new("mount"));
        command.args(arguments);
        program::finish(command)?.good().map(drop)
    }

    /// Mounts a tmpfs of this many KiB.
    pub fn small_disk(&self, at: &Path, kib: u64) -> Result<()> {
        let options = format!("size={kib}k,mode=0700");
        let at = at.as_os_str();
        let (kind, name) = (OsStr::new("tmpfs"), OsStr::new("leafhost"));
        self.mount([
            OsStr::new("-o"),
            options.as_ref(),
            "-t".as_ref(),
            kind,
            name,
            at,
        ])
    }

    /// Bind-mounts a folder onto itself, so that it can be made read-only.
    pub fn bind(&self, at: &Path) -> Result<()> {
        self.mount([OsStr::new("--bind"), at.as_os_str(), at.as_os_str()])
    }

    /// Makes a mount of [`Self::bind`] read-only or writable.
    pub fn set_read_only(&self, at: &Path, read_only: bool) -> Result<()> {
        let options = if read_only {
            "remount,bind,ro"
        } else {
            "remount,bind,rw"
        };
        self.mount([OsStr::new("-o"), options.as_ref(), at.as_os_str()])
    }

    /// Returns the path outside for a path in the namespace.
    pub fn outside(&self, path: &Path) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(path.strip_prefix("/").unwrap_or(path))
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        let _ = self.holder.kill();
        let _ = self.holder.wait();
    }
}
