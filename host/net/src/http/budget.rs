//! Budget shared by the requests of one call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::HttpError;

/// Budget shared by the requests of one call: concurrent connections, and bytes on the wire in both directions. The host works for an
/// exchange outside the guest's own CPU budget; this bounds that work.
#[derive(Debug)]
pub struct Budget {
    permits: Arc<Semaphore>,
    at_once: usize,
    left: AtomicU64,
    bytes: u64,
    kept: AtomicU64,
    most_kept: AtomicU64,
}

impl Default for Budget {
    /// Allows 128 concurrent requests and 64 MiB.
    fn default() -> Self {
        Self::new(128, 64 * 1024 * 1024)
    }
}

impl Budget {
    /// Allows `at_once` concurrent requests and `bytes` in total.
    pub fn new(at_once: usize, bytes: u64) -> Self {
        let at_once = at_once.min(Semaphore::MAX_PERMITS);
        Self {
            permits: Arc::new(Semaphore::new(at_once)),
            at_once,
            left: AtomicU64::new(bytes),
            bytes,
            kept: AtomicU64::new(0),
            most_kept: AtomicU64::new(0),
        }
    }

    /// Returns the peak number of request bytes that the host has held since the last call: bodies that were collected and have no answer
    /// yet.
    pub fn most_kept(&self) -> u64 {
        let now = self.kept.load(Ordering::Relaxed);
        self.most_kept.swap(now, Ordering::Relaxed).max(now)
    }

    /// Returns the number of bytes that may still be sent or received.
    pub fn left(&self) -> u64 {
        self.left.load(Ordering::Relaxed)
    }

    /// Acquires a permit for one more request, to be held as long as its connection.
    pub(super) fn enter(&self) -> Result<OwnedSemaphorePermit, HttpError> {
        if self.left() == 0 {
            return Err(self.spent());
        }
        Arc::clone(&self.permits)
            .try_acquire_owned()
            .map_err(|_| HttpError::Busy(self.at_once))
    }

    /// Subtracts bytes from the budget. Returns false and leaves none if fewer were left.
    pub(super) fn charge(&self, bytes: u64) -> bool {
        let take = |left: u64| Some(left.saturating_sub(bytes));
        let before = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, take);
        before.is_ok_and(|before| bytes <= before)
    }

    pub(super) fn spent(&self) -> HttpError {
        HttpError::Spent(self.bytes)
    }
}

/// Counts the bytes of one request that the host holds.
#[derive(Debug)]
pub(super) struct BudgetGuard<'a> {
    budget: &'a Budget,
    bytes: u64,
}

impl<'a> BudgetGuard<'a> {
    pub(super) fn new(budget: &'a Budget) -> Self {
        Self { budget, bytes: 0 }
    }

    /// Counts more held bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.bytes += bytes;
        let now = self.budget.kept.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.budget.most_kept.fetch_max(now, Ordering::Relaxed);
    }
}

impl Drop for BudgetGuard<'_> {
    fn drop(&mut self) {
        self.budget.kept.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}
