//! Lock of a folder of specs: two processes that share one would remove each other's files.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{ErrorKind, Read as _};
use std::os::unix::fs::OpenOptionsExt as _;

use super::{Error, SpecDir, failed};

/// Maximum number of bytes read from a lock file.
const MAX_PID: u64 = 32;

/// Lock of a folder of specs, released on drop.
#[derive(Debug)]
pub struct SpecLock {
    _file: File,
}

impl SpecDir {
    /// Locks the folder for this process and creates it if missing. Blocks briefly.
    ///
    /// # Errors
    /// Returns [`Error::InUse`] if another process holds the lock, otherwise the error of the file system.
    pub fn lock(&self) -> Result<SpecLock, Error> {
        self.create()?;
        let path = self
            .directory
            .join(format!(".{}_{}.lock", self.vendor, self.owner));
        // Deny access to other users: whoever can open the file can lock it.
        let mut options = OpenOptions::new();
        let created = options.write(true).create_new(true).mode(0o600).open(&path);
        let is_file = || fs::symlink_metadata(&path).is_ok_and(|found| found.is_file());
        match created {
            Err(error) if error.kind() != ErrorKind::AlreadyExists || !is_file() => {
                return Err(failed("create", &path, error));
            }
            _ => {}
        }
        // A file open for writing would prevent a read-only remount.
        let file = File::open(&path).map_err(|source| failed("open", &path, source))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut pid = String::new();
                // The pid only makes the message more helpful.
                let _ = (&file).take(MAX_PID).read_to_string(&mut pid);
                return Err(Error::InUse {
                    directory: self.directory.clone(),
                    pid: pid.trim().to_owned(),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock", &path, source)),
        }
        // Only the message of a second process needs the pid.
        let _ = fs::write(&path, format!("{}\n", std::process::id()));
        Ok(SpecLock { _file: file })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::directory::Readers;

    #[test]
    fn a_folder_is_held_once_and_the_second_process_learns_by_whom() {
        let folder = tempfile::tempdir().unwrap();
        let mk = || {
            let directory = folder.path().join("cdi");
            SpecDir::new(directory, "akri.sh", "leafhost", Readers::Everybody).unwrap()
        };
        let held = mk().lock().unwrap();
        let text = mk().lock().unwrap_err().to_string();
        let pid = format!("pid {}", std::process::id());
        assert!(text.contains(&pid) && text.contains("--cdi-dir"), "{text}");
        assert!(mk().classes().unwrap().is_empty());
        drop(held);
        assert!(mk().lock().is_ok());
    }

    #[test]
    fn what_is_no_file_is_not_opened() {
        let folder = tempfile::tempdir().unwrap();
        let target = folder.path().join("target");
        std::os::unix::fs::symlink(&target, folder.path().join(".akri.sh_leafhost.lock")).unwrap();
        let directory = SpecDir::new(folder.path(), "akri.sh", "leafhost", Readers::Root).unwrap();
        assert!(matches!(directory.lock(), Err(Error::Io { .. })));
        assert!(!target.exists());
    }
}
