//! Limits how often the same is written again. Where somebody else takes it back each time, such as the controller on behalf of a node that
//! it takes for gone, neither would end.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// So often it is written at once.
const AT_ONCE: u32 = 4;
/// How often from then on.
const EVERY: Duration = Duration::from_mins(1);

/// What was written lately.
#[derive(Debug)]
pub struct Repeats<K> {
    /// When each may be written at once as often as before.
    full: BTreeMap<K, Instant>,
}

impl<K> Default for Repeats<K> {
    fn default() -> Self {
        let full = BTreeMap::new();
        Self { full }
    }
}

impl<K: Ord> Repeats<K> {
    /// When it may be written again; nothing if now.
    pub fn next(&self, what: &K, now: Instant) -> Option<Instant> {
        let next = *self.full.get(what)? - EVERY * (AT_ONCE - 1);
        (next > now).then_some(next)
    }

    /// It was written.
    pub fn wrote(&mut self, what: K, now: Instant) {
        self.full.retain(|_, full| *full > now);
        let full = self.full.entry(what).or_insert(now);
        *full += EVERY;
    }

    /// This agent itself took it back.
    pub fn forget(&mut self, what: &K) {
        self.full.remove(what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_back_each_time_is_written_once_a_minute_in_the_end() {
        let (mut repeats, begun) = (Repeats::default(), Instant::now());
        let mut writes = 0;
        for second in 0..=600 {
            let now = begun + Duration::from_secs(second);
            if repeats.next(&"a", now).is_none() {
                repeats.wrote("a", now);
                writes += 1;
            }
            if second == 10 {
                assert_eq!(writes, 4);
            }
        }
        assert_eq!(writes, 4 + 10);
        let now = begun + Duration::from_mins(10);
        assert_eq!(repeats.next(&"b", now), None);
        assert!(
            repeats
                .next(&"a", now)
                .is_some_and(|next| next <= now + EVERY)
        );
        repeats.forget(&"a");
        assert_eq!(repeats.next(&"a", now), None);
    }
}
