//! What the requests of one call may use together.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::HttpError;

/// What the requests of one call may use together: connections at once, and bytes on the wire in both directions.
/// The host works for a request outside the guest's own budget of CPU time; this bounds that work.
#[derive(Debug)]
pub struct Budget {
    places: Arc<Semaphore>,
    at_once: usize,
    left: AtomicU64,
    bytes: u64,
}

impl Default for Budget {
    /// 128 requests at once, 64 MiB.
    fn default() -> Self {
        Self::new(128, 64 * 1024 * 1024)
    }
}

impl Budget {
    /// So many requests at once, so many bytes in all.
    pub fn new(at_once: usize, bytes: u64) -> Self {
        let at_once = at_once.min(Semaphore::MAX_PERMITS);
        Self {
            places: Arc::new(Semaphore::new(at_once)),
            at_once,
            left: AtomicU64::new(bytes),
            bytes,
        }
    }

    /// Bytes that may still be sent or received.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// A place for one more request, held as long as its connection.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        if self.left() == 0 {
            return Err(self.spent());
        }
        Arc::clone(&self.places)
            .try_acquire_owned()
            .map_err(|_| HttpError::Busy {
                at_once: self.at_once,
            })
    }

    /// Takes bytes away. `false`: there were not that many, and now there are none.
    pub(super) fn charge(&self, bytes: u64) -> bool {
        let take = |left: u64| Some(left.saturating_sub(bytes));
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.is_ok_and(|before| bytes <= before)
    }

    pub(super) fn spent(&self) -> HttpError {
        HttpError::Spent { bytes: self.bytes }
    }
}
