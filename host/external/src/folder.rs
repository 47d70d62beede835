//! The folder of external handlers. The agent opens a socket in it component by component without following links, and connects through
//! the opened file: a process that can write to the folder cannot redirect the agent, not even between a check and its use.
//!
//! `openat2(2)` would do this in one call, but needs Linux 5.6. Nothing here waits for a file system other than that of the folder.

use std::io;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{AT_FDCWD, OFlag, openat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat};
use tokio::net::UnixStream;

#[derive(Debug, Clone)]
pub struct Folder {
    /// Path as configured.
    named: PathBuf,
    /// Canonical path, without links.
    real: PathBuf,
}

/// Reason why there is no usable socket.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("is not in the folder of external handlers")]
    Outside,
    #[error("is a symbolic link, or its path contains one")]
    Link,
    /// The system call failed, or there is no such file or it is not a socket.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// An open socket file in the folder, independent of what its path leads to by now.
#[derive(Debug)]
pub struct Socket {
    file: OwnedFd,
    /// User that owns the file.
    pub owner: u32,
}

impl Folder {
    /// Creates the folder if it is missing.
    pub fn new(named: PathBuf) -> Self {
        // An error shows later, when the socket cannot be created there.
        let created = std::fs::create_dir_all(&named).and_then(|()| std::fs::canonicalize(&named));
        Self {
            real: created.unwrap_or_else(|_| named.clone()),
            named,
        }
    }

    /// Returns the canonical path of the folder.
    pub fn path(&self) -> &Path {
        &self.real
    }

    /// Returns the path below the canonical folder if it lies in the folder.
    pub fn within(&self, path: &Path) -> Result<PathBuf, Error> {
        let rest = [&self.real, &self.named]
            .into_iter()
            .find_map(|folder| path.strip_prefix(folder).ok());
        let rest = rest.ok_or(Error::Outside)?;
        let mut parts = rest.components().peekable();
        let is_plain = |part| matches!(part, Component::Normal(_));
        if parts.peek().is_none() || !parts.all(is_plain) {
            return Err(Error::Outside);
        }
        Ok(self.real.join(rest))
    }

    /// Opens the socket at a path in the folder.
    pub fn socket(&self, path: &Path) -> Result<Socket, Error> {
        let (file, found) = self.open(path)?;
        if !is(&found, SFlag::S_IFSOCK) {
            return Err(io::Error::other("it is not a socket").into());
        }
        Ok(Socket {
            file,
            owner: found.st_uid,
        })
    }

    /// Opens the socket at a path in the folder; returns `None` if only the file itself is missing.
    pub fn socket_to_come(&self, path: &Path) -> Result<Option<Socket>, Error> {
        match self.socket(path) {
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::NotFound => {
                let above = path.parent().filter(|above| self.within(above).is_ok());
                above.map_or(Ok(()), |above| self.open(above).map(drop))?;
                Ok(None)
            }
            found => found.map(Some),
        }
    }

    fn open(&self, path: &Path) -> Result<(OwnedFd, FileStat), Error> {
        let path = self.within(path)?;
        let rest = path.strip_prefix(&self.real).map_err(|_| Error::Outside)?;
        let flags = OFlag::O_PATH | OFlag::O_CLOEXEC;
        let folder = flags | OFlag::O_DIRECTORY;
        let opened = openat(AT_FDCWD, &self.real, folder, Mode::empty());
        let mut file = opened.map_err(io::Error::from)?;
        let mut found = fstat(&file).map_err(io::Error::from)?;
        for part in rest {
            let opened = openat(&file, part, flags | OFlag::O_NOFOLLOW, Mode::empty());
            file = opened.map_err(io::Error::from)?;
            found = fstat(&file).map_err(io::Error::from)?;
            if is(&found, SFlag::S_IFLNK) {
                return Err(Error::Link);
            }
        }
        Ok((file, found))
    }
}

fn is(found: &FileStat, kind: SFlag) -> bool {
    SFlag::from_bits_truncate(found.st_mode) & SFlag::S_IFMT == kind
}

impl Socket {
    pub async fn connect(&self) -> io::Result<UnixStream> {
        UnixStream::connect(format!("/proc/self/fd/{}", self.file.as_raw_fd())).await
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use tokio::net::UnixListener;

    use super::*;

    #[tokio::test]
    async fn a_socket_that_is_replaced_by_a_link_after_it_was_opened_is_still_the_one() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::new(dir.path().join("akri"));
        let (own, other) = (folder.path().join("a.sock"), dir.path().join("other.sock"));
        let listener = UnixListener::bind(&own).unwrap();
        let elsewhere = UnixListener::bind(&other).unwrap();
        let socket = folder.socket(&own).unwrap();
        std::fs::rename(&own, folder.path().join("moved")).unwrap();
        symlink(&other, &own).unwrap();
        let (connected, accepted) = tokio::join!(socket.connect(), listener.accept());
        assert!(connected.is_ok() && accepted.is_ok(), "{connected:?}");
        let nobody = futures::FutureExt::now_or_never(elsewhere.accept());
        assert!(nobody.is_none(), "{nobody:?}");
        assert!(matches!(folder.socket(&own), Err(Error::Link)));
    }

    #[tokio::test]
    async fn no_part_of_a_path_is_a_link_or_leads_out() {
        let dir = tempfile::tempdir().unwrap();
        let named = dir.path().join("named");
        std::fs::create_dir_all(dir.path().join("real/sub")).unwrap();
        symlink(dir.path().join("real"), &named).unwrap();
        let folder = Folder::new(named.clone());
        let real = folder.path().to_owned();
        let _listeners = [real.join("sub/a.sock"), dir.path().join("out.sock")]
            .map(|path| UnixListener::bind(path).unwrap());
        std::fs::write(real.join("file"), "").unwrap();
        symlink(real.join("sub"), real.join("link")).unwrap();
        symlink("sub/a.sock", real.join("inner.sock")).unwrap();
        for (path, expected) in [
            (named.join("sub/a.sock"), "socket"),
            (real.join("sub/a.sock"), "socket"),
            (
                real.join("link/a.sock"),
                "is a symbolic link, or its path contains one",
            ),
            (
                real.join("inner.sock"),
                "is a symbolic link, or its path contains one",
            ),
            (real.join("file"), "it is not a socket"),
            (real.join("sub"), "it is not a socket"),
            (
                real.join("sub/../sub/a.sock"),
                "is not in the folder of external handlers",
            ),
            (
                real.join("../out.sock"),
                "is not in the folder of external handlers",
            ),
            (
                dir.path().join("out.sock"),
                "is not in the folder of external handlers",
            ),
            (real.clone(), "is not in the folder of external handlers"),
            (real.join("none"), "No such file or directory (os error 2)"),
            (real.join("file/a.sock"), "Not a directory (os error 20)"),
        ] {
            let found = folder.socket(&path).map(|_| "socket".to_owned());
            let found = found.unwrap_or_else(|error| error.to_string());
            assert_eq!(found, expected, "{}", path.display());
        }
    }
}
