//! Remembers the last write of each object, so that neither a refused write nor another writer that reverts it causes many requests. Does
//! no I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use leafhost_core::backoff;
use leafhost_core::status_store::WriteError;
use leafhost_core::timeouts::BACKOFF_LAST;
use tokio::time::Instant;

/// Last write of each object: `W` is the value that was written, `S` the object as it was seen before the write.
#[derive(Debug)]
pub struct Attempts<K, W, S>(BTreeMap<K, Attempt<W, S>>);

#[derive(Debug)]
struct Attempt<W, S> {
    what: W,
    /// Object before the write; the error if the write failed and is delayed even if the object has changed.
    seen: Result<S, WriteError>,
    failures: u32,
    again: Instant,
}

impl<K, W, S> Default for Attempts<K, W, S> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord, W: PartialEq, S: PartialEq> Attempts<K, W, S> {
    /// Returns the time until which an object must not be written, or `None` if it may be written now. A successful write is not repeated
    /// while the object is unchanged; a failed write is not repeated even if the object has changed.
    pub fn later(&self, key: &K, what: &W, seen: &S, now: Instant) -> Option<Instant> {
        let attempt = self.0.get(key)?;
        let is_news = attempt.seen.as_ref().is_ok_and(|before| before != seen);
        (attempt.what == *what && !is_news && attempt.again > now).then_some(attempt.again)
    }

    /// Returns the error of the last write of an object, if it failed. A conflict with another writer does not count as a failure.
    pub fn error(&self, key: &K) -> Option<&WriteError> {
        self.0.get(key)?.seen.as_ref().err()
    }

    /// Records the answer to a write. The backoff grows with each failure; a successful write is not repeated for `settle` while the object
    /// is unchanged.
    pub fn tried(
        &mut self,
        key: K,
        (what, seen): (W, S),
        answer: &Result<(), WriteError>,
        settle: Duration,
        at: Instant,
    ) {
        let before = self.0.get(&key).filter(|before| before.what == what);
        let failures = before.map_or(0, |before| before.failures).saturating_add(1);
        let wait = backoff::without_jitter(failures);
        let (seen, failures, wait) = match answer {
            Ok(()) | Err(WriteError::Outdated) => (Ok(seen), 0, settle),
            Err(error @ (WriteError::Taken | WriteError::Denied(_))) => {
                (Err(error.clone()), failures, wait)
            }
            Err(error @ WriteError::NoAnswer { retry_after, .. }) => {
                let retry_after = retry_after.unwrap_or_default().min(BACKOFF_LAST);
                (Err(error.clone()), failures, wait.max(retry_after))
            }
        };
        let attempt = Attempt {
            what,
            seen,
            failures,
            again: at + wait,
        };
        self.0.insert(key, attempt);
    }

    /// Forgets the objects that need no write any more, except those whose wait is not over. A failure is kept for [`BACKOFF_LAST`] more, so
    /// that a task may leave its object out of some passes.
    pub fn forget(&mut self, is_wanted: impl Fn(&K) -> bool, now: Instant) {
        self.0.retain(|key, attempt| {
            let has_failed = attempt.seen.is_err();
            let longer = if has_failed {
                BACKOFF_LAST
            } else {
                Duration::ZERO
            };
            is_wanted(key) || attempt.again + longer > now
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_fails_is_tried_ever_later_and_what_was_written_once_the_object_is_another() {
        let mut attempts = Attempts::default();
        let at = Instant::now();
        let refused = || Err(WriteError::Denied("no right".into()));
        let no_answer = |retry_after| {
            let message = "busy".into();
            Err(WriteError::NoAnswer {
                message,
                retry_after,
            })
        };
        let busy = no_answer(Some(Duration::from_secs(30)));
        let week = no_answer(Some(Duration::from_hours(168)));
        // Value written, object seen, answer, and the seconds to wait: for the object as it was seen, and for a changed object.
        let table = [
            ("pod", 1, refused(), 1, 1),
            ("pod", 1, no_answer(None), 2, 2),
            ("pod", 2, refused(), 4, 4),
            ("pod", 2, busy, 30, 30),
            ("pod", 2, refused(), 16, 16),
            ("pod", 2, week, 300, 300),
            // A different value is written.
            ("job", 2, refused(), 1, 1),
            ("job", 2, Ok(()), 10, 0),
            ("job", 3, Err(WriteError::Outdated), 10, 0),
            ("job", 3, refused(), 1, 1),
        ];
        for (row, (what, seen, answer, same, other)) in table.into_iter().enumerate() {
            attempts.tried((), (what, seen), &answer, Duration::from_secs(10), at);
            let wait = |seen| {
                let later = attempts.later(&(), &what, &seen, at);
                later.map_or(0, |later| (later - at).as_secs())
            };
            assert_eq!((wait(seen), wait(seen + 1)), (same, other), "row {row}");
            assert_eq!(attempts.later(&(), &"another", &seen, at), None);
        }
        attempts.forget(|()| false, at);
        assert!(attempts.later(&(), &"job", &3, at).is_some());
        let over = at + Duration::from_secs(1);
        attempts.forget(|()| false, over);
        attempts.tried((), ("job", 3), &refused(), Duration::ZERO, over);
        let later = attempts.later(&(), &"job", &3, over);
        assert_eq!(later, Some(over + Duration::from_secs(2)), "counted on");
        let later = over + Duration::from_secs(2);
        attempts.forget(|()| false, later + BACKOFF_LAST);
        assert!(attempts.0.is_empty());
    }
}
