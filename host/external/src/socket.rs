//! Sockets in the folder of external handlers: one that another process serves is left alone, one that nobody serves is replaced.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use futures::StreamExt as _;
use inotify::{EventStream, Inotify, WatchMask};
use nix::sys::stat::{Mode, fchmod};
use socket2::{Domain, SockAddr, Socket, Type};
use tokio::net::{UnixListener, UnixStream};

/// The longest path of a socket, in bytes, by `sockaddr_un` without the byte that ends it.
const MAX_PATH: usize = 107;
/// How long to try an existing socket before calling it served.
const TRIED: Duration = Duration::from_secs(1);
/// How many connections may wait to be accepted.
const WAITING: i32 = 128;
/// The most bytes of events that are read at once.
const EVENTS: usize = 1024;

/// What happens in a folder.
pub type Events = EventStream<[u8; EVENTS]>;

/// Why the socket is not there.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process serves it.
    #[error(
        "another process serves {}, perhaps Akri's agent; stop it, or choose another folder with --external-handlers-dir",
        .0.display()
    )]
    Served(PathBuf),
    /// Something else has the name.
    #[error("{} exists and is no socket; remove it, or choose another folder with --external-handlers-dir", .0.display())]
    Foreign(PathBuf),
    /// No socket can have the path.
    #[error("{} has more than {MAX_PATH} bytes and can be no socket; choose a shorter folder with --external-handlers-dir", .0.display())]
    TooLong(PathBuf),
    /// The system refused.
    #[error("cannot listen on {} ({source}); the agent must be allowed to write there, or choose another folder with --external-handlers-dir", path.display())]
    Refused {
        /// The socket.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
}

/// A socket's file, as long as no other has its name.
#[derive(Debug, Clone)]
pub struct SocketFile {
    path: PathBuf,
    identity: Identity,
}

impl SocketFile {
    /// The one that is there now.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self {
            path: path.to_owned(),
            identity: identity(path)?,
        })
    }

    fn is_there(&self) -> bool {
        identity(&self.path).is_ok_and(|found| found == self.identity)
    }

    /// Ends when the file is gone or another one has its name, if that can be seen.
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

    /// Removes it, unless another file has its name by now.
    pub fn remove(&self) {
        if self.is_there() {
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// Events of a folder when a name comes or goes.
pub fn names_of(folder: &Path) -> io::Result<Events> {
    events(
        folder,
        WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE,
    )
}

/// The events of a folder.
pub fn events(folder: &Path, kinds: WatchMask) -> io::Result<Events> {
    let inotify = Inotify::init()?;
    inotify.watches().add(folder, kinds)?;
    inotify.into_event_stream([0; EVENTS])
}

/// With the time at which it was made: a number is used again.
type Identity = (u64, u64, Option<SystemTime>);

fn identity(path: &Path) -> io::Result<Identity> {
    let found = std::fs::symlink_metadata(path)?;
    Ok((found.dev(), found.ino(), found.created().ok()))
}

/// Listens, for this process's own user and root.
pub async fn bind(path: &Path) -> Result<(UnixListener, SocketFile), Error> {
    if path.as_os_str().len() > MAX_PATH {
        return Err(Error::TooLong(path.to_owned()));
    }
    let refused = |source| Error::Refused {
        path: path.to_owned(),
        source,
    };
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(refused(error)),
        Ok(found) if !found.file_type().is_socket() => return Err(Error::Foreign(path.to_owned())),
        Ok(_) => {
            let tried = tokio::time::timeout(TRIED, UnixStream::connect(path)).await;
            match tried {
                Ok(Err(error)) if error.kind() == io::ErrorKind::ConnectionRefused => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::NotFound => {}
                Ok(Err(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return Err(refused(error));
                }
                _ => return Err(Error::Served(path.to_owned())),
            }
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(refused(error));
                }
                _ => {}
            }
        }
    }
    let bound = || {
        let socket = Socket::new(Domain::UNIX, Type::STREAM.nonblocking(), None)?;
        // The file is made with the mode of the socket; its name may be another file's a moment later.
        fchmod(&socket, Mode::S_IRUSR | Mode::S_IWUSR)?;
        socket.bind(&SockAddr::unix(path)?)?;
        socket.listen(WAITING)?;
        let listener = UnixListener::from_std(OwnedFd::from(socket).into())?;
        Ok((listener, SocketFile::at(path)?))
    };
    bound().map_err(refused)
}
