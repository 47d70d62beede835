//! Remembers objects that another writer deleted, so that an object that is deleted again and again is restored less and less often. Does no
//! I/O.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use crate::backoff;

/// Time without a deletion after which an object's series of deletions ends.
const STAYED: Duration = Duration::from_mins(10);

/// Series of deletions by object name.
#[derive(Debug, Default)]
pub struct Lost(BTreeMap<String, Row>);

#[derive(Debug)]
struct Row {
    times: u32,
    last: Instant,
}

impl Lost {
    /// Records a deletion. Returns the time from which the object may be created again, and true if it was deleted before.
    pub fn note(&mut self, name: &str, now: Instant) -> (Instant, bool) {
        self.0.retain(|_, row| now < row.last + STAYED);
        let row = self.0.entry(name.to_owned()).or_insert(Row {
            times: 0,
            last: now,
        });
        row.times = row.times.saturating_add(1);
        row.last = now;
        match row.times {
            1 => (now, false),
            times => (now + backoff(times - 1), true),
        }
    }

    /// Forgets all series, since the objects are built differently now.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_deleted_again_and_again_is_made_ever_later_and_what_stayed_at_once() {
        let mut lost = Lost::default();
        let mut now = Instant::now();
        let mut made = 0;
        let begun = now;
        while now < begun + Duration::from_mins(30) {
            let (next, _) = lost.note("a", now);
            assert!(next <= now + Duration::from_mins(5));
            now = next + Duration::from_millis(500);
            made += 1;
        }
        assert!((12..20).contains(&made), "{made}");
        let later = now + STAYED;
        assert_eq!(lost.note("a", later), (later, false));
    }
}
