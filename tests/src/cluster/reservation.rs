//! Number of a cluster on this machine, and every folder, name, address and control group derived from it.
//!
//! Clusters with different numbers share nothing. Knows nothing of Kubernetes.

use std::fs::{self, DirBuilder, File};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context, Result, bail, ensure};

use crate::program::{self, source_tree};

const NUMBERS: std::ops::RangeInclusive<u8> = 1..=60;

/// Number of a cluster and the names derived from it.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClusterId {
    pub number: u8,
}

/// Reserved number, released on drop.
pub(super) struct Reservation {
    pub id: ClusterId,
    lock: File,
}

/// Process that ends the cluster when this is dropped or the current process ends.
pub(super) struct Watchdog(Option<Child>);

impl ClusterId {
    /// Returns the folder of everything the cluster writes; short, because socket paths have at most 107 bytes.
    pub fn folder(self) -> PathBuf {
        PathBuf::from(format!("/var/cache/lhc/{}", self.number))
    }

    /// Returns the path of the file that marks a cluster that outlives its process.
    pub fn kept(self) -> PathBuf {
        self.folder().join("kept")
    }

    pub fn name(self) -> String {
        format!("lhc{}", self.number)
    }

    /// Returns a loopback address of the cluster alone, so that programs can use fixed ports.
    pub fn loopback(self) -> String {
        format!("127.77.{}.1", self.number)
    }

    /// Returns the machine's address on the bridge.
    pub fn gateway(self) -> String {
        format!("10.77.{}.1", self.number)
    }

    pub fn node_address(self, index: u8) -> String {
        format!("10.77.{}.{}", self.number, index.saturating_add(2))
    }

    /// Returns the address of a host that a test connects.
    pub fn host_address(self) -> String {
        format!("10.77.{}.100", self.number)
    }

    /// Returns the address range of the pods on one node.
    pub fn pod_range(self, index: u8) -> String {
        format!("10.{}.{}.0/24", index.saturating_add(100), self.number)
    }

    /// Returns a control group of the cluster; creates it if missing.
    pub fn group(self, path: &str) -> Result<Group> {
        let path = format!("{}/{path}", self.name());
        let root = if unified() {
            Path::new("/sys/fs/cgroup")
        } else {
            Path::new("/sys/fs/cgroup/pids")
        };
        let folder = root.join(path);
        fs::create_dir_all(&folder)
            .with_context(|| format!("cannot create the control group {}", folder.display()))?;
        Ok(Group(folder))
    }

    /// Creates the parent group of a node's pods with every controller of the machine, and returns its path.
    pub fn pods_group(self, node: &str) -> Result<String> {
        let path = format!("{}/{node}", self.name());
        if unified() {
            let root = Path::new("/sys/fs/cgroup");
            let controllers = fs::read_to_string(root.join("cgroup.controllers"))?;
            let all: String = controllers
                .split_whitespace()
                .map(|controller| format!("+{controller} "))
                .collect();
            fs::create_dir_all(root.join(&path))?;
            for folder in [root, &root.join(self.name()), &root.join(&path)] {
                fs::write(folder.join("cgroup.subtree_control"), &all)
                    .with_context(|| format!("cannot pass controllers on in {path}"))?;
            }
            return Ok(format!("/{path}"));
        }
        for hierarchy in hierarchies()? {
            let mut folder = hierarchy;
            for part in path.split('/') {
                let parent = folder.clone();
                folder.push(part);
                fs::create_dir_all(&folder)
                    .with_context(|| format!("cannot create {}", folder.display()))?;
                // A cpuset group needs both files before it can hold a process.
                for file in ["cpuset.cpus", "cpuset.mems"] {
                    if parent.join(file).exists() {
                        fs::write(folder.join(file), fs::read(parent.join(file))?)?;
                    }
                }
            }
        }
        Ok(format!("/{path}"))
    }

    /// Removes the groups of ended pods, which the next kubelet would otherwise find.
    pub fn remove_pods(self, node: &str) -> Result<()> {
        for hierarchy in hierarchies()? {
            remove(&hierarchy.join(self.name()).join(node).join("kubepods"))?;
        }
        Ok(())
    }

    /// Kills the cluster's processes and removes its files.
    pub fn end(self) -> Result<()> {
        program::run(end_script(), [self.number.to_string()])?
            .good()
            .map(drop)
    }

    /// Returns true if any process of the cluster runs.
    pub fn is_alive(self) -> Result<bool> {
        Ok(!self.group("")?.processes()?.is_empty())
    }
}

/// Returns the numbers of kept clusters.
pub(super) fn kept() -> Vec<ClusterId> {
    NUMBERS
        .map(|number| ClusterId { number })
        .filter(|id| id.kept().exists())
        .collect()
}

fn unified() -> bool {
    Path::new("/sys/fs/cgroup/cgroup.controllers").exists()
}

/// Returns the roots of the control group hierarchies.
fn hierarchies() -> Result<Vec<PathBuf>> {
    let root = PathBuf::from("/sys/fs/cgroup");
    if unified() {
        return Ok(vec![root]);
    }
    let mut found = Vec::new();
    for entry in fs::read_dir(&root).context("there are no control groups")? {
        let entry = entry?;
        // A controller may have a second name, which is a symbolic link.
        if entry.file_type()?.is_dir() && entry.file_name() != "unified" {
            found.push(entry.path());
        }
    }
    Ok(found)
}

/// Removes a group and its children; the kernel removes the files in them.
fn remove(group: &Path) -> Result<()> {
    let Ok(entries) = fs::read_dir(group) else {
        return Ok(());
    };
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove(&entry.path())?;
        }
    }
    fs::remove_dir(group).with_context(|| format!("cannot remove {}", group.display()))
}

fn end_script() -> PathBuf {
    source_tree().join("tests/cluster/end.sh")
}

impl Reservation {
    /// Reserves the first free number and ends what a killed run left of that number.
    pub fn first() -> Result<Self> {
        let locks = Path::new("/run/lhc");
        fs::create_dir_all(locks).with_context(|| format!("cannot create {}", locks.display()))?;
        for number in NUMBERS {
            let id = ClusterId { number };
            let path = locks.join(number.to_string());
            let lock =
                File::create(&path).with_context(|| format!("cannot create {}", path.display()))?;
            if lock.try_lock().is_err() || id.kept().exists() {
                continue;
            }
            id.end()?;
            let mut private = DirBuilder::new();
            private.recursive(true).mode(0o700).create(id.folder())?;
            return Ok(Self { id, lock });
        }
        bail!("all of {NUMBERS:?} are in use: end one with `make cluster-stop`")
    }

    /// Releases the number to a cluster that outlives this process, and saves a text about it.
    pub fn keep(self, text: &str) -> Result<()> {
        fs::write(self.id.kept(), text).context("cannot mark the cluster as kept")
    }

    /// Starts a process that ends the cluster together with this process.
    pub fn watch(self) -> Result<Watchdog> {
        let mut command = Command::new(end_script());
        command
            .arg(self.id.number.to_string())
            .arg("when-input-ends")
            .stdin(Stdio::piped())
            // The child holds the lock, so the number is free only after the cleanup.
            .stdout(self.lock)
            .current_dir("/");
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let child = command.spawn().context("cannot start end.sh")?;
        Ok(Watchdog(Some(child)))
    }
}

impl Watchdog {
    /// Ends the cluster now.
    pub fn end(&mut self) -> Result<()> {
        let Some(mut child) = self.0.take() else {
            return Ok(());
        };
        drop(child.stdin.take());
        let status = child.wait().context("cannot wait for end.sh")?;
        ensure!(status.success(), "end.sh ended with {status}");
        Ok(())
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("cluster: {error:#}");
        }
    }
}

/// Control group of some of the cluster's processes and their children.
#[derive(Debug, Clone)]
pub(super) struct Group(PathBuf);

impl Group {
    /// Returns a command that runs `program` in this group, with the PID of the child.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.0.join("cgroup.procs"))
            .arg(program);
        command
    }

    /// Returns the processes in the group and its children.
    pub fn processes(&self) -> Result<Vec<i32>> {
        let mut found = Vec::new();
        let mut folders = vec![self.0.clone()];
        while let Some(folder) = folders.pop() {
            // Groups of pods may disappear during the walk.
            let Ok(entries) = fs::read_dir(&folder) else {
                continue;
            };
            for entry in entries.flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    folders.push(entry.path());
                }
            }
            let text = fs::read_to_string(folder.join("cgroup.procs")).unwrap_or_default();
            for line in text.lines() {
                found.push(line.parse().context("a pid is no number")?);
            }
        }
        Ok(found)
    }

    /// Kills all processes and waits until they are gone.
    pub fn kill(&self) -> Result<()> {
        crate::wait::eventually("the processes end", || {
            let processes = self.processes()?;
            for pid in &processes {
                let pid = nix::unistd::Pid::from_raw(*pid);
                // The process may have ended meanwhile.
                let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGKILL);
            }
            ensure!(processes.is_empty(), "{processes:?} still run");
            Ok(())
        })
    }
}
