//! One process at a time keeps its specs in a folder: two would each take the other's for devices that are gone.

use std::fs::{File, TryLockError};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;

use super::{Error, SpecDir, failed};

/// The folder is held until this is dropped, or the process ends.
#[derive(Debug)]
pub struct Hold {
    folder: File,
}

impl SpecDir {
    /// Holds the folder; `held` is what came of that the last time. Nothing comes of it where there is no folder yet, or
    /// where its file system knows no locks.
    pub fn hold(&self, held: Option<Hold>) -> Result<Option<Hold>, Error> {
        let path = self.directory();
        let fail = |source| failed("read", path, source);
        let folder = match File::open(path) {
            Ok(folder) => folder,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(source) => return Err(fail(source)),
        };
        if let Some(held) = held {
            // Somebody may have put another folder in its place.
            let (old, new) = (held.folder.metadata(), folder.metadata());
            let (old, new) = (old.map_err(fail)?, new.map_err(fail)?);
            if (old.dev(), old.ino()) == (new.dev(), new.ino()) {
                return Ok(Some(held));
            }
        }
        match folder.try_lock() {
            Ok(()) => Ok(Some(Hold { folder })),
            Err(TryLockError::WouldBlock) => Err(Error::InUse {
                path: path.to_owned(),
            }),
            Err(TryLockError::Error(_)) => Ok(None),
        }
    }
}
