//! Rate limit for repeated writes of the same value. Without it, this agent would write forever against another writer
//! that always reverts the value, such as a controller that considers the node gone.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Number of writes allowed in a burst by default.
const AT_ONCE: u32 = 4;
/// Interval between writes after the burst.
const EVERY: Duration = Duration::from_mins(1);

/// Recent writes by key.
#[derive(Debug)]
pub struct WriteLimiter<K> {
    /// Number of writes allowed in a burst.
    at_once: u32,
    /// `Instant` at which the key's full burst is restored.
    full: BTreeMap<K, Instant>,
}

impl<K> Default for WriteLimiter<K> {
    fn default() -> Self {
        Self::new(AT_ONCE)
    }
}

impl<K> WriteLimiter<K> {
    /// Creates a limiter that allows `at_once` writes in a burst.
    pub fn new(at_once: u32) -> Self {
        let full = BTreeMap::new();
        Self { at_once, full }
    }
}

impl<K: Ord> WriteLimiter<K> {
    /// Returns the time at which the key may be written again, or `None` if it may be written now.
    pub fn next(&self, what: &K, now: Instant) -> Option<Instant> {
        let next = *self.full.get(what)? - EVERY * self.at_once.saturating_sub(1);
        (next > now).then_some(next)
    }

    /// Records a write of the key.
    pub fn record(&mut self, what: K, now: Instant) {
        self.full.retain(|_, full| *full > now);
        let full = self.full.entry(what).or_insert(now);
        *full += EVERY;
    }

    /// Forgets the writes of a key after this agent itself has reverted them.
    pub fn forget(&mut self, what: &K) {
        self.full.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_each_time_is_written_once_a_minute_in_the_end() {
        let (mut limiter, begun) = (WriteLimiter::default(), Instant::now());
        let mut writes = 0;
        for second in 0..=600 {
            let now = begun + Duration::from_secs(second);
            if limiter.next(&"a", now).is_none() {
                limiter.record("a", now);
                writes += 1;
            }
            if second == 10 {
                assert_eq!(writes, 4);
            }
        }
        assert_eq!(writes, 4 + 10);
        let now = begun + Duration::from_mins(10);
        assert_eq!(limiter.next(&"b", now), None);
        assert!(
            limiter
                .next(&"a", now)
                .is_some_and(|next| next <= now + EVERY)
        );
        limiter.forget(&"a");
        assert_eq!(limiter.next(&"a", now), None);
    }
}
