//! Detection of exhausted file descriptors, and the remedy.

use std::io;

use nix::errno::Errno;

/// Remedy for errors that [`lacks_files`] detects.
pub const MORE_FILES: &str =
    "raise the limit of open files, in a unit LimitNOFILE=, in a shell ulimit -n";

/// Returns true if the error means that no file descriptor is free.
pub fn lacks_files(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EMFILE | Errno::ENFILE))
}
