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
    lock: File,
}

impl SpecDir {
    /// Holds the folder; `held` is what came of that the last time, and stays what it was at an error. Nothing comes of it where
    /// there is no folder, where nothing may be written, and where the file system knows no locks.
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
        if let Some(before) = held {
            // Somebody may have put another folder in its place.
            let before = before.lock.metadata().map_err(fail("read"))?;
            let now = lock.metadata().map_err(fail("read"))?;
            if (before.dev(), before.ino()) == (now.dev(), now.ino()) {
                return Ok(());
            }
        }
        *held = None;
        match lock.try_lock() {
            Ok(()) => *held = Some(Hold { lock }),
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

/// The file, made if need be; nothing if there can be none.
fn open(path: &Path) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    let made = options.write(true).create_new(true).mode(0o600).open(path);
    match made {
        Ok(_) => {}
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => match fs::symlink_metadata(path) {
            Ok(there) if there.is_file() => {}
            Ok(_) => return Err(io::Error::other("is not a regular file; move it away")),
            Err(_) => {
                return match error.kind() {
                    ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Ok(None),
                    _ => Err(error),
                };
            }
        },
    }
    // What is open for reading keeps nobody from making the file system read-only.
    let mut options = OpenOptions::new();
    let there = options.read(true).custom_flags(O_NONBLOCK).open(path);
    match there {
        Ok(file) => Ok(Some(file)),
        // Removed meanwhile: the next time there is one.
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn knows_no_locks(error: &io::Error) -> bool {
    error.kind() == ErrorKind::Unsupported || matches!(error.raw_os_error(), Some(ENOLCK | EBADF))
}
