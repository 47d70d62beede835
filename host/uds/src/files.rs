//! Tells when no more files may be open, and says what to do then.

use std::io;

use nix::errno::Errno;

/// What to do about [`lacks_files`].
pub const MORE_FILES: &str =
    "raise the limit of open files, in a unit LimitNOFILE=, in a shell ulimit -n";

/// Whether no more files may be open.
pub fn lacks_files(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EMFILE | Errno::ENFILE))
}
