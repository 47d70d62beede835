//! Looks through the causes of an error, and says what to do when no more files may be open.

use std::error::Error;
use std::io;

use nix::errno::Errno;

/// What to do about [`lacks_files`].
pub(crate) const MORE_FILES: &str =
    "raise the limit of open files, in a unit LimitNOFILE=, in a shell ulimit -n";

/// All causes of an error, the nearest first, without the error itself.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// The error of the operating system among the causes of an error.
pub(crate) fn io_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}

/// Whether no more files may be open.
pub(crate) fn lacks_files(error: &io::Error) -> bool {
    let code = error.raw_os_error().map(Errno::from_raw);
    matches!(code, Some(Errno::EMFILE | Errno::ENFILE))
}

/// An error of the operating system that outlives its owner.
pub(crate) fn owned(error: &io::Error) -> io::Error {
    match error.raw_os_error() {
        Some(code) => io::Error::from_raw_os_error(code),
        None => io::Error::new(error.kind(), error.to_string()),
    }
}
