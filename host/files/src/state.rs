//! The state folder: locks it for one agent, and ties it to a node.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::Duration;

use leafhost_core::ports::SourceProblem;

use leafhost_disk::atomic;

const NODE_NAME: &str = "node-name";
const LOCK: &str = "lock";
/// Time that the agent waits for the lock of another one.
const MOMENT: Duration = Duration::from_secs(1);

/// Reason why the state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation failed.
    #[error("cannot {action} {}: {remedy}", path.display())]
    Io {
        /// Attempted operation.
        action: &'static str,
        /// File or folder of the operation.
        path: PathBuf,
        /// Remedy for the operator.
        remedy: &'static str,
        /// Error of the system.
        #[source]
        source: io::Error,
    },
    /// Another agent uses the folder.
    #[error(
        "the state folder {} is in use by the agent with pid {pid}; stop that one, or name another folder with --state-dir",
        path.display()
    )]
    InUse {
        /// Path of the folder.
        path: PathBuf,
        /// Pid of the other agent, as far as it has written it.
        pid: String,
    },
    /// The Instances in the folder belong to another node.
    #[error(
        "the state folder {} belongs to node {remembered:?}, and this node is {given:?}; start with --node-name {remembered}, or remove {} and everything beside it to begin anew, with new Instances",
        path.display(),
        path.join(NODE_NAME).display()
    )]
    OtherNode {
        /// Path of the folder.
        path: PathBuf,
        /// Name of the node that the folder belongs to.
        remembered: String,
        /// Name of the node given now.
        given: String,
    },
}

/// The state folder, locked until it is dropped.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    problem: Option<SourceProblem>,
    _lock: File,
}

impl StateDir {
    /// Creates the folder if it is missing, for its owner alone, and locks it. Blocks.
    pub fn open(path: impl Into<PathBuf>, node_name: &str) -> Result<Self, Error> {
        let path = path.into();
        let fail = |action, at: &Path| {
            let at = at.to_owned();
            move |source: io::Error| Error::Io {
                action,
                path: at,
                remedy: atomic::remedy(&source),
                source,
            }
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(&path)
            .map_err(fail("create the state folder", &path))?;
        let lock = path.join(LOCK);
        let (mut file, problem) = open_lock(&path, |writes| {
            let mut options = OpenOptions::new();
            options.read(true).write(writes).create(writes).mode(0o600);
            options.open(&lock)
        })
        .map_err(fail("open", &lock))?;
        match hold(&file) {
            Ok(true) => {}
            Ok(false) => {
                let pid = fs::read(&lock).map_err(fail("read", &lock))?;
                return Err(Error::InUse {
                    path,
                    pid: String::from_utf8_lossy(&pid).trim().to_owned(),
                });
            }
            Err(error) => return Err(fail("lock", &lock)(error)),
        }
        // The pid only serves the message of a second agent: a full disk is no reason not to start.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        atomic::open(&path).map_err(fail("read", &path))?;
        let remembered = path.join(NODE_NAME);
        let read = match fs::read(&remembered) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).trim().to_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(fail("read", &remembered)(error)),
        };
        // Only a full disk can leave an empty file.
        if read.is_empty() {
            atomic::write(&path, NODE_NAME, format!("{node_name}\n").as_bytes())
                .map_err(fail("write", &remembered))?;
        } else if read != node_name {
            return Err(Error::OtherNode {
                remembered: read,
                given: node_name.to_owned(),
                path,
            });
        }
        Ok(Self {
            path,
            problem,
            _lock: file,
        })
    }

    /// Returns the path of the folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the problem found when the folder was opened.
    pub fn problem(&self) -> Option<&SourceProblem> {
        self.problem.as_ref()
    }
}

/// Opens the lock file, read-only if nothing can be written, which locks as well. The agent then serves what is stored.
fn open_lock(
    folder: &Path,
    open: impl Fn(bool) -> io::Result<File>,
) -> io::Result<(File, Option<SourceProblem>)> {
    let error = match open(true) {
        Ok(file) => return Ok((file, None)),
        Err(error) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => error,
        Err(error) => return Err(error),
    };
    let Ok(file) = open(false) else {
        return Err(error);
    };
    let message = "is on a read-only file system: what is there serves, and nothing new is kept; make it writable and restart the agent, or name another folder with --state-dir";
    Ok((
        file,
        Some(SourceProblem::new(folder.display().to_string(), message)),
    ))
}

/// Locks the file, waiting a moment: a child that a killed agent was starting holds the lock until it runs another program.
fn hold(file: &File) -> io::Result<bool> {
    match file.try_lock() {
        Ok(()) => return Ok(true),
        Err(TryLockError::WouldBlock) => {}
        Err(TryLockError::Error(error)) => return Err(error),
    }
    let (held, wait) = mpsc::channel();
    let waiter = file.try_clone()?;
    std::thread::Builder::new().spawn(move || {
        // The receiver may be gone.
        let _ = held.send(waiter.lock());
    })?;
    match wait.recv_timeout(MOMENT) {
        Ok(locked) => locked.map(|()| true),
        Err(_) => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};

    #[test]
    fn the_folder_is_made_for_its_owner_alone_and_held_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/state");
        let held = StateDir::open(&path, "edge-1").unwrap();
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o700);
        let text = StateDir::open(&path, "edge-1").unwrap_err().to_string();
        assert!(
            text.contains(&format!("pid {}", std::process::id())) && text.contains("--state-dir"),
            "{text}"
        );
        drop(held);
        assert_eq!(StateDir::open(&path, "edge-1").unwrap().path(), path);
    }

    #[test]
    fn a_lock_that_is_let_go_in_a_moment_is_waited_for() {
        let folder = tempfile::tempdir().unwrap();
        drop(StateDir::open(folder.path(), "edge-1").unwrap());
        let copy = File::open(folder.path().join(LOCK)).unwrap();
        copy.lock().unwrap();
        // Form of a waiting process in /proc/locks.
        let inode = format!(":{} ", copy.metadata().unwrap().ino());
        let is_waited_for = || {
            let locks = fs::read_to_string("/proc/locks").unwrap();
            locks
                .lines()
                .any(|lock| lock.contains("-> ") && lock.contains(&inode))
        };
        std::thread::scope(|scope| {
            let second = scope.spawn(|| StateDir::open(folder.path(), "edge-1"));
            while !is_waited_for() && !second.is_finished() {
                std::thread::yield_now();
            }
            drop(copy);
            assert!(second.join().unwrap().is_ok());
        });
    }

    #[test]
    fn what_a_crash_has_left_is_cleared() {
        let folder = tempfile::tempdir().unwrap();
        let half = folder.path().join(".new-abc.tmp");
        fs::write(&half, "edge").unwrap();
        drop(StateDir::open(folder.path(), "edge-1").unwrap());
        assert!(!half.exists());
    }

    #[test]
    fn another_node_name_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        drop(StateDir::open(folder.path(), "edge-1").unwrap());
        let text = StateDir::open(folder.path(), "edge-2")
            .unwrap_err()
            .to_string();
        for words in ["edge-2", "--node-name edge-1", "node-name"] {
            assert!(text.contains(words), "{text}");
        }
        drop(StateDir::open(folder.path(), "edge-1").unwrap());
    }

    #[test]
    fn where_nothing_can_be_written_the_lock_is_held_for_reading_and_that_is_told() {
        let folder = tempfile::tempdir().unwrap();
        let lock = folder.path().join(LOCK);
        let read_only = |writes| {
            if writes {
                // EROFS
                return Err(io::Error::from_raw_os_error(30));
            }
            File::open(&lock)
        };
        let error = open_lock(folder.path(), read_only).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ReadOnlyFilesystem);
        File::create(&lock).unwrap();
        let (file, problem) = open_lock(folder.path(), read_only).unwrap();
        assert!(problem.unwrap().message.contains("--state-dir"));
        assert!(hold(&file).unwrap());
        assert!(!hold(&File::open(&lock).unwrap()).unwrap());
    }

    #[test]
    fn a_path_that_cannot_be_a_folder_is_named_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        for path in [file.clone(), file.join("state")] {
            let text = StateDir::open(&path, "edge-1").unwrap_err().to_string();
            assert!(
                text.contains("--state-dir") && text.contains("file"),
                "{text}"
            );
        }
    }
}
