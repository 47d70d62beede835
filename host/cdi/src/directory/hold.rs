//! One process at a time keeps its specs in a folder: two would each take the other's for devices that are gone.
//!
//! What is locked is a file of the owner that nobody else may open. The folder itself anybody could lock who may read it.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::{Error, O_NONBLOCK, SpecDir, failed};

/// Lock servers have no lock to give.
const ENOLCK: i32 = 37;
/// NFS locks nothing for one alone that is open for reading.
const EBADF: i32 = 9;

/// The folder is held until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Hold {
    /// Open, so that no other file gets its number.
    _lock: File,
    id: (u64, u64),
}

impl SpecDir {
    /// Holds the folder; `held` is what came of that the last time, and stays what it was at an error. Nothing comes of it where
    /// there is no folder, where no file can be made, and where the file system knows no locks.
    pub fn hold(&self, held: &mut Option<Hold>) -> Result<(), Error> {
        let path = self.lock_path();
        let fail = |action| {
            let path = &path;
            move |source| failed(action, path, source)
        };
        let Some(lock) = open(&path).map_err(fail("open"))? else {
            *held = None;
            return Ok(());
        };
        let metadata = lock.metadata().map_err(fail("read"))?;
        let id = (metadata.dev(), metadata.ino());
        // Somebody may have put another folder in its place.
        if held.as_ref().is_some_and(|held| held.id == id) {
            return Ok(());
        }
        *held = None;
        match lock.try_lock() {
            Ok(()) => *held = Some(Hold { _lock: lock, id }),
            Err(TryLockError::WouldBlock) => {
                return Err(Error::InUse {
                    path: self.directory().to_owned(),
                });
            }
            Err(TryLockError::Error(error)) if knows_no_locks(&error) => {}
            Err(TryLockError::Error(source)) => return Err(failed("lock", &path, source)),
        }
        Ok(())
    }

    /// A file no runtime reads.
    pub(super) fn lock_path(&self) -> PathBuf {
        let name = format!(".{}_{}.lock", self.vendor, self.owner);
        self.directory().join(name)
    }
}

/// The file, made if need be; nothing if there can be none. It is open for reading, which keeps nobody from making the file system
/// read-only, and made only where there is none, so that a file system that is frozen holds up nothing.
fn open(path: &Path) -> io::Result<Option<File>> {
    match fs::symlink_metadata(path) {
        Ok(there) if there.is_file() => {}
        Ok(_) => return Err(io::Error::other("it is not a regular file; move it away")),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let mut options = OpenOptions::new();
            let made = options.write(true).create_new(true).mode(0o600).open(path);
            match made {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
                Err(error) if may_not_be_made(error.kind()) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        Err(error) => return Err(error),
    }
    let mut options = OpenOptions::new();
    match options.read(true).custom_flags(O_NONBLOCK).open(path) {
        Ok(file) => Ok(Some(file)),
        // Removed meanwhile: the next time there is one.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) if error.kind() == ErrorKind::PermissionDenied => Err(io::Error::other(
            "it is another user's: if no agent of that user runs, remove it",
        )),
        Err(error) => Err(error),
    }
}

/// Whether there is no folder, or nothing new may lie there: specs that are there are offered all the same.
fn may_not_be_made(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::PermissionDenied
            | ErrorKind::ReadOnlyFilesystem
            | ErrorKind::StorageFull
            | ErrorKind::QuotaExceeded
    )
}

fn knows_no_locks(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported || matches!(error.raw_os_error(), Some(ENOLCK | EBADF))
}
