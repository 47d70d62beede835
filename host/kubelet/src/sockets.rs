//! The plugin's sockets in the kubelet's folder: names them, makes them, and removes those that an earlier process left.
//! Files of others are never touched.
//!
//! A socket has two names: its own, by which other processes see that the resource is served, and one that no other session
//! has, which the kubelet is told. From 1.37 on a kubelet knows the plugins of a resource by the paths of their sockets. If
//! a plugin registers a path just when the stream of an earlier one with that path ends, the kubelet never sees that end,
//! and refuses the path until it is restarted.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use tokio::net::{UnixListener, UnixStream};

use crate::ResourceName;
use crate::causes::{MORE_FILES, lacks_files};

/// The longest path of a socket, in bytes, by `sockaddr_un` without the byte that ends it.
const MAX_PATH: usize = 107;
/// The length of what is added to a socket's name for a session: `.` and eight hexadecimal digits.
const SESSION: usize = 9;
/// How long to probe an existing socket before calling it served.
const PROBE: Duration = Duration::from_secs(1);

/// Why a socket could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that is no socket has the name.
    #[error("{} exists and is not a socket: remove it, and the resource is registered", .0.display())]
    Foreign(PathBuf),
    /// Another process serves it.
    #[error("another process serves {}: only one agent may run on a node; stop the other one", .0.display())]
    Served(PathBuf),
    /// No socket can have the path.
    #[error("{} has more than {} bytes and can be no socket: choose a shorter folder or prefix", .0.display(), MAX_PATH - SESSION)]
    TooLong(PathBuf),
    /// No more files may be open.
    #[error("cannot make the socket {} ({source}): {MORE_FILES}", path.display())]
    Files {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The system refused.
    #[error("cannot make the socket {} ({source}): the folder must be there and writable, run as root", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// Result of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The file name of a resource's socket, with room for that of a session. `is_taken` tells whether another resource has it.
pub(crate) fn name(
    folder: &Path,
    prefix: &str,
    resource: &ResourceName,
    is_taken: impl Fn(&str) -> bool,
) -> String {
    let (_, part) = resource
        .as_str()
        .split_once('/')
        .unwrap_or(("", resource.as_str()));
    let plain = format!("{prefix}-{part}.sock");
    if has_room(&folder.join(&plain)) && !is_taken(&plain) {
        return plain;
    }
    let digest = Sha256::digest(resource.as_str());
    let digest: String = digest.iter().take(8).map(|b| format!("{b:02x}")).collect();
    format!("{prefix}-{digest}.sock")
}

fn has_room(path: &Path) -> bool {
    path.as_os_str().len() + SESSION <= MAX_PATH
}

/// A socket that this process made. It is removed when this is dropped, unless other files have its names by then.
#[derive(Debug)]
pub(crate) struct Socket {
    path: PathBuf,
    /// Its name for this session.
    session: PathBuf,
    made: (u64, u64),
}

impl Socket {
    fn new(path: PathBuf, made: (u64, u64)) -> io::Result<Self> {
        // A hash of nothing is as random as its keys.
        let random = RandomState::new().build_hasher().finish() & u64::from(u32::MAX);
        let socket = Self {
            session: path.with_extension(format!("{random:08x}.sock")),
            path,
            made,
        };
        std::fs::hard_link(&socket.path, &socket.session)?;
        Ok(socket)
    }

    /// The file name for this session, which the kubelet is told.
    pub fn session(&self) -> String {
        let name = self.session.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        for path in [&self.session, &self.path] {
            if identity(path).is_ok_and(|found| found == self.made) {
                drop(std::fs::remove_file(path));
            }
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino()))
}

/// Makes a socket and listens on it. A socket that no process serves is replaced.
pub(crate) async fn bind(path: PathBuf) -> Result<(UnixListener, Socket)> {
    if !has_room(&path) {
        return Err(Error::TooLong(path));
    }
    match std::fs::symlink_metadata(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(source) => return Err(refused(path, source)),
        Ok(found) if !found.file_type().is_socket() => return Err(Error::Foreign(path)),
        Ok(_) => {
            match is_stale(&path).await {
                Ok(true) => {}
                Ok(false) => return Err(Error::Served(path)),
                Err(source) => return Err(refused(path, source)),
            }
            if let Err(source) = remove(&path) {
                return Err(refused(path, source));
            }
        }
    }
    let bound = UnixListener::bind(&path).and_then(|listener| {
        let socket = Socket::new(path.clone(), identity(&path)?)?;
        Ok((listener, socket))
    });
    bound.map_err(|source| refused(path, source))
}

fn refused(path: PathBuf, source: io::Error) -> Error {
    if lacks_files(&source) {
        Error::Files { path, source }
    } else {
        Error::Refused { path, source }
    }
}

/// Removes the plugin's sockets that no process serves. What cannot be removed stays.
pub(crate) async fn sweep(folder: &Path, prefix: &str) {
    let Ok(entries) = std::fs::read_dir(folder) else {
        return;
    };
    let begin = format!("{prefix}-");
    for entry in entries.flatten() {
        let name = entry.file_name();
        let name = name.to_str();
        let is_ours = name.is_some_and(|name| has_our_name(name, &begin));
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_ours && is_socket && matches!(is_stale(&entry.path()).await, Ok(true)) {
            let socket = entry.path();
            let removed = remove(&socket);
            tracing::debug!(socket = %socket.display(), ?removed, "removed a socket that no process serves");
        }
    }
}

fn has_our_name(name: &str, begin: &str) -> bool {
    let end = name.strip_prefix(begin);
    end.is_some_and(|name| name.strip_suffix(".sock").is_some())
}

/// Whether no process listens on a socket any more; an error where that cannot be determined.
async fn is_stale(path: &Path) -> io::Result<bool> {
    match tokio::time::timeout(PROBE, UnixStream::connect(path)).await {
        Ok(Err(error)) => match error.kind() {
            // A kubelet that starts removes all sockets, perhaps this one just now.
            io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound => Ok(true),
            io::ErrorKind::PermissionDenied => Err(error),
            _ if lacks_files(&error) => Err(error),
            _ => Ok(false),
        },
        Ok(Ok(_)) | Err(_) => Ok(false),
    }
}

fn remove(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
