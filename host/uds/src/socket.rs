//! Socket files. A socket that another process serves is kept, one that no process serves is replaced, and other files are
//! never touched.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use nix::errno::Errno;
use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

use crate::watch::names_of;

/// Maximum length of a socket path, in bytes: the size in `sockaddr_un` without the terminating NUL.
pub const MAX_PATH: usize = 107;
/// Time without an answer after which a probed socket counts as served.
const PROBE: Duration = Duration::from_secs(1);
/// Length of the queue of connections that wait to be accepted.
const WAITING: i32 = 128;

/// Remedy for errors that [`lacks_files`] detects.
pub const MORE_FILES: &str =
    "raise the limit of open files, in a unit LimitNOFILE=, in a shell ulimit -n";

/// Returns true if the error means that no file descriptor is free.
pub fn lacks_files(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EMFILE | Errno::ENFILE))
}

/// Error of creating a socket. Its text contains the reason and the remedy.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process serves the socket.
    #[error("another process serves {}, perhaps another agent; stop that process", .0.display())]
    Served(PathBuf),
    /// Another kind of file has the name.
    #[error("{} exists and is not a socket; remove it", .0.display())]
    Foreign(PathBuf),
    /// The path is too long for a socket.
    #[error("{} has more than {MAX_PATH} bytes and cannot be a socket; shorten it", .0.display())]
    TooLong(PathBuf),
    /// No file descriptor is free.
    #[error("cannot create the socket {} ({source}); {MORE_FILES}", .path.display())]
    NoDescriptor {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
    /// Another error of the system.
    #[error(
        "cannot create the socket {} ({source}); run as root, and make sure that the folder exists and is writable",
        .path.display()
    )]
    Io {
        /// Path of the socket.
        path: PathBuf,
        /// Error of the system.
        source: io::Error,
    },
}

impl Error {
    /// Converts an error of the system.
    pub fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        if lacks_files(&source) {
            return Self::NoDescriptor { path, source };
        }
        Self::Io { path, source }
    }

    /// Returns the text with another remedy at the end, such as `, or choose another folder`, if another path may be free
    /// of the error.
    pub fn or(&self, other: &str) -> String {
        match self {
            Self::NoDescriptor { .. } => self.to_string(),
            _ => format!("{self}{other}"),
        }
    }
}

/// Socket file, identified even if another file takes its name.
#[derive(Debug, Clone)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

impl SocketFile {
    /// Identifies the file that is at the path now.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: identity(path)?,
        })
    }

    fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
    }

    /// Waits until the file is deleted or replaced. Waits forever if the folder cannot be watched.
    pub async fn gone(&self) {
        let folder = self.path.parent().unwrap_or(Path::new("/"));
        if let Ok(mut events) = names_of(folder) {
            while self.is_there() {
                if events.next().await.is_none() {
                    break;
                }
            }
            if !self.is_there() {
                return;
            }
        }
        std::future::pending::<()>().await;
    }
}

/// Guard that removes a socket file on drop, unless another file has its name.
#[derive(Debug)]
pub struct RemovedOnDrop(pub SocketFile);

impl Drop for RemovedOnDrop {
    fn drop(&mut self) {
        if self.0.is_there() {
            drop(std::fs::remove_file(&self.0.path));
        }
    }
}

/// Device, inode and creation time. Inode numbers are reused, so the time distinguishes files.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(path: &Path) -> io::Result<Identity> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino(), found.created().ok()))
}

/// Creates a socket with access for this process's user and root only, and listens on it. Replaces a socket that no
/// process serves.
///
/// # Errors
/// Fails if another process serves the socket, if another kind of file has the name, or if the system refuses the path.
pub async fn bind(path: &Path) -> Result<(UnixListener, RemovedOnDrop), Error> {
    if path.as_os_str().len() > MAX_PATH {
        return Err(Error::TooLong(path.to_owned()));
    }
    let failed = |error| Error::io(path, error);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
        Ok(found) if !found.file_type().is_socket() => {
            return Err(Error::Foreign(path.to_owned()));
        }
        Ok(_) if remove_stale(path).await.map_err(failed)? => {}
        Ok(_) => return Err(Error::Served(path.to_owned())),
    }
    listen(path).map_err(failed)
}

fn listen(path: &Path) -> io::Result<(UnixListener, RemovedOnDrop)> {
    let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
    // The mode is set before `bind`: afterwards the name may already be another file's.
    fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
    socket.bind(&SockAddr::unix(path)?)?;
    socket.listen(WAITING)?;
    let listener = UnixListener::from_std(OwnedFd::from(socket).into())?;
    Ok((listener, RemovedOnDrop(SocketFile::at(path)?)))
}

/// Removes a socket that no process listens on. Returns true if it is gone.
///
/// # Errors
/// Fails if the state of the socket cannot be determined, or if it cannot be removed.
pub async fn remove_stale(path: &Path) -> io::Result<bool> {
    let Ok(Err(error)) = tokio::time::timeout(PROBE, UnixStream::connect(path)).await else {
        return Ok(false);
    };
    match error.kind() {
        // The file may have been removed just now.
        io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => {}
        io::ErrorKind::PermissionDenied => return Err(error),
        _ if lacks_files(&error) => return Err(error),
        _ => return Ok(false),
    }
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(true),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn one_that_nobody_serves_is_replaced_and_one_that_is_served_or_foreign_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let (listener, file) = bind(&path).await.unwrap();
        // Keep the inode in use, or the next file would get it.
        std::fs::hard_link(&path, dir.path().join("kept")).unwrap();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        assert!(matches!(bind(&path).await, Err(Error::Served(_))));
        assert!(!remove_stale(&path).await.unwrap());
        drop(listener);
        assert!(path.exists(), "as after a kill");
        let (_listener, second) = bind(&path).await.unwrap();
        drop(file);
        assert!(path.exists(), "it is another one by now");
        drop(second);
        assert!(!path.exists());
        std::fs::write(&path, "").unwrap();
        assert!(matches!(bind(&path).await, Err(Error::Foreign(_))));
        assert!(path.exists());
    }

    #[tokio::test]
    async fn a_path_is_as_long_as_the_kernel_lets_it_be() {
        let dir = tempfile::tempdir().unwrap();
        let rest = MAX_PATH - dir.path().as_os_str().len() - 1;
        let longest = dir.path().join("x".repeat(rest));
        bind(&longest).await.unwrap();
        let longer = dir.path().join("x".repeat(rest + 1));
        assert!(matches!(bind(&longer).await, Err(Error::TooLong(_))));
    }

    #[tokio::test]
    async fn a_file_is_gone_when_its_name_is_or_is_anothers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        for replaced in [false, true] {
            let (_listener, file) = bind(&path).await.unwrap();
            let change = async {
                tokio::task::yield_now().await;
                std::fs::rename(&path, dir.path().join("moved")).unwrap();
                if replaced {
                    std::fs::write(&path, "").unwrap();
                }
            };
            let gone = async { tokio::join!(file.0.gone(), change) };
            tokio::time::timeout(Duration::from_secs(10), gone)
                .await
                .unwrap();
        }
    }
}
