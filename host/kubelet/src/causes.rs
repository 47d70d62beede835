//! Searches the causes of an error.

use std::error::Error;
use std::io;

/// Returns all causes of an error, the nearest first, without the error itself.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |&cause| cause.source())
}

/// Returns the I/O error among the causes of an error.
pub(crate) fn io_cause<'a>(error: &'a (dyn Error + 'static)) -> Option<&'a io::Error> {
    causes(error).find_map(|cause| cause.downcast_ref())
}
