//! The cursors of all sessions: bounds the bytes that handlers make the host remember.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Maximum size of all cursors together, in bytes.
const MOST: usize = 64 << 20;
/// Maximum size of a cursor that is always kept, in bytes, so that large cursors of others do not affect a handler with a small one.
const SMALL: usize = 64 << 10;

/// Counter of the bytes of all kept cursors.
#[derive(Debug, Default)]
pub(crate) struct Cursors {
    held: AtomicUsize,
}

impl Cursors {
    /// Keeps a cursor, or returns the reason why it cannot be kept.
    pub(crate) fn keep(self: &Arc<Self>, bytes: Vec<u8>) -> Result<Cursor, String> {
        let length = bytes.len();
        let room = |held: usize| {
            let held = held.saturating_add(length);
            (held <= MOST || length <= SMALL).then_some(held)
        };
        let counted = self
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, room);
        if counted.is_err() {
            return Err(format!(
                "cursor: its {length} bytes are not kept and the next call has none, as the cursors of all sessions would have more than {} MiB; \
                 up to {} KiB are always kept: use the handler for less at a time, or in fewer Configurations",
                MOST >> 20,
                SMALL >> 10
            ));
        }
        Ok(Cursor {
            bytes: bytes.into(),
            all: Arc::clone(self),
        })
    }
}

/// A kept cursor, counted until it is dropped.
#[derive(Debug)]
pub(crate) struct Cursor {
    pub(crate) bytes: Box<[u8]>,
    all: Arc<Cursors>,
}

impl Drop for Cursor {
    fn drop(&mut self) {
        self.all.held.fetch_sub(self.bytes.len(), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: usize = 1 << 20;

    #[test]
    fn the_sum_of_large_cursors_is_bounded_and_small_ones_are_always_kept() {
        let all = Arc::new(Cursors::default());
        let keep = |length: usize| all.keep(vec![0; length]);
        let mut kept: Vec<Cursor> = (0..64).map(|_| keep(LARGE).unwrap()).collect();
        let why = keep(SMALL + 1).unwrap_err();
        assert!(
            why.contains("65537 bytes") && why.contains("64 MiB"),
            "{why}"
        );
        let small = keep(SMALL).unwrap();
        drop(kept.pop());
        keep(LARGE).unwrap_err();
        drop(small);
        kept.push(keep(LARGE).unwrap());
        drop(kept);
        assert_eq!(all.held.load(Ordering::Relaxed), 0);
    }
}
