//! The state folder: locks it for one agent, ties it to a node, and opens what both modes keep there.

use std::fs::{self, DirBuilder, File, OpenOptions, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use leafhost_core::ports::SourceProblem;
use leafhost_disk::atomic;

use crate::blocking::blocking;
use crate::{FileLedger, FileLoaderStore};

const NODE_NAME: &str = "node-name";
const LOCK: &str = "lock";
const VERSION: &str = "version";
/// Version of the files in the state folder. A change that an older agent would misread increases it.
const FORMAT: u32 = 1;
/// Time for which the agent waits until another process releases the lock.
const MOMENT: Duration = Duration::from_secs(1);

/// Reason why the state of an earlier run cannot be used, with the remedy.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Error(String);

/// Returns a function that converts the `io::Error` of an operation on this file or folder.
pub(crate) fn fail(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let path = path.display().to_string();
    move |error| {
        let remedy = atomic::remedy(&error);
        Error(format!("cannot {action} {path}: {remedy}: {error}"))
    }
}

/// Returns the error for a state folder that belongs to another agent or node.
fn taken(folder: &Path, why: &str) -> Error {
    Error(format!("the state folder {} {why}", folder.display()))
}

/// State that an agent keeps on its node in either mode. Dropping it releases the state folder, so it must outlive all users of its parts.
pub struct NodeState {
    /// Accepted versions of handlers, and those that are being loaded.
    pub accepted: Arc<FileLoaderStore>,
    /// Names of resources that were ever offered.
    pub ledger: Arc<FileLedger>,
    /// State folder itself. Dropped last, when nothing writes to it any more.
    pub dir: StateDir,
}

impl NodeState {
    /// Opens the state folder for the node of that name.
    pub async fn open(state_dir: PathBuf, node_name: &str) -> Result<Self, Error> {
        let node_name = node_name.to_owned();
        let dir = blocking(move || StateDir::open(state_dir, &node_name)).await?;
        let path = &dir.path;
        let ledger = FileLedger::open(path.clone()).await;
        let kept = path.join("accepted/handlers");
        let accepted = FileLoaderStore::open(kept.clone(), path.clone()).await;
        Ok(Self {
            ledger: Arc::new(ledger.map_err(fail("read", path))?),
            accepted: Arc::new(accepted.map_err(fail("read", &kept))?),
            dir,
        })
    }
}

/// State folder, locked until it is dropped.
#[derive(Debug)]
pub struct StateDir {
    /// Path of the folder.
    pub path: PathBuf,
    /// Problem found when the folder was opened.
    pub problem: Option<SourceProblem>,
    _lock: File,
}

impl StateDir {
    /// Creates the folder if it is missing, for its owner alone, and locks it. Blocks.
    fn open(path: impl Into<PathBuf>, node_name: &str) -> Result<Self, Error> {
        let path = path.into();
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
        if !hold(&file).map_err(fail("lock", &lock))? {
            // The other agent may have written only a part of its pid.
            let pid = fs::read(&lock).map_err(fail("read", &lock))?;
            let pid = String::from_utf8_lossy(&pid);
            let why = format!(
                "is in use by the agent with pid {}; stop that agent, or name another folder with --state-dir",
                pid.trim()
            );
            return Err(taken(&path, &why));
        }
        // The pid only serves the message of a second agent: a full disk does not keep the agent from starting.
        let _ = file
            .set_len(0)
            .and_then(|()| file.rewind())
            .and_then(|()| writeln!(file, "{}", std::process::id()));
        atomic::open(&path).map_err(fail("read", &path))?;
        check_version(&path)?;
        let remembered = path.join(NODE_NAME);
        let read = text_of(&remembered).map_err(fail("read", &remembered))?;
        let read = read.trim();
        // Only a full disk can leave an empty file.
        if read.is_empty() {
            atomic::write(&path, NODE_NAME, format!("{node_name}\n").as_bytes())
                .map_err(fail("write", &remembered))?;
        } else if read != node_name {
            let why = format!(
                "belongs to node {read:?}, and this node is {node_name:?}; start with --node-name {read}, or remove {} and everything beside it to start again, with new Instances",
                remembered.display()
            );
            return Err(taken(&path, &why));
        }
        Ok(Self {
            path,
            problem,
            _lock: file,
        })
    }
}

/// Returns the text of a file; empty if there is no such file. Blocks.
pub(crate) fn text_of(file: &Path) -> io::Result<String> {
    match fs::read(file) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

/// Refuses a folder that a newer agent has written. A folder without a version gets the current one.
fn check_version(folder: &Path) -> Result<(), Error> {
    let file = folder.join(VERSION);
    let read = text_of(&file).map_err(fail("read", &file))?;
    let read = read.trim();
    if read.is_empty() {
        // A disk that cannot be written does not keep the agent from starting.
        let _ = atomic::write(folder, VERSION, format!("{FORMAT}\n").as_bytes());
        return Ok(());
    }
    let why = match read.parse::<u32>() {
        Ok(version) if version <= FORMAT => return Ok(()),
        Ok(version) => format!(
            "has files of version {version}, and this agent reads those up to version {FORMAT}; start the newer agent that wrote them, or name another folder with --state-dir"
        ),
        Err(_) => format!(
            "has the version {read:?}, which is no number; remove {} if no newer agent has written it, or name another folder with --state-dir",
            file.display()
        ),
    };
    Err(taken(folder, &why))
}

/// Opens the lock file. On a read-only file system opens it only for reading, which is enough to lock it; the agent then serves what is
/// stored.
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
    let message = "is on a read-only file system: the existing content stays in use, and nothing new is kept; make it writable and restart the agent, or name another folder with --state-dir";
    Ok((
        file,
        Some(SourceProblem::new(folder.display().to_string(), message)),
    ))
}

/// Locks the file; returns false if it is still locked after [`MOMENT`]. A child process that a killed agent was starting holds the lock
/// until it executes its program.
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
        assert_eq!(StateDir::open(&path, "edge-1").unwrap().path, path);
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
    fn what_a_newer_agent_has_written_is_refused_with_the_remedy() {
        let folder = tempfile::tempdir().unwrap();
        let version = folder.path().join(VERSION);
        drop(StateDir::open(folder.path(), "edge-1").unwrap());
        assert_eq!(fs::read_to_string(&version).unwrap(), "1\n");
        for (text, words) in [
            ("2\n", "start the newer agent"),
            ("1.5", "which is no number; remove "),
        ] {
            fs::write(&version, text).unwrap();
            let error = StateDir::open(folder.path(), "edge-1").unwrap_err();
            let error = error.to_string();
            assert!(
                error.contains(words) && error.contains("--state-dir"),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&version).unwrap(), text);
        }
        fs::write(&version, "").unwrap();
        drop(StateDir::open(folder.path(), "edge-1").unwrap());
        assert_eq!(fs::read_to_string(&version).unwrap(), "1\n");
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
