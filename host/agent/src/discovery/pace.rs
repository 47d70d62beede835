//! How often the course of things is put into words: a document about all sessions, of which every answer changes a little.
//!
//! With few Configurations that is at once. What it costs grows with them, and then it is done less often, so that it takes
//! no more than a tenth of the time in the long run; what sessions answer is not held up by the telling of it.

use std::time::{Duration, Instant as Watch};

use tokio::time::Instant;

/// The telling may take one part of so many of the time.
const PARTS: u32 = 10;
/// So much of the time may be ahead of it: half a second's part is told in a row.
const AHEAD: Duration = Duration::from_millis(500);
/// What took longer was held up by something else.
const MOST: Duration = Duration::from_millis(300);

/// When the next document may be made.
#[derive(Debug, Default)]
pub(super) struct Pace {
    /// Until then the documents made so far take up their part of the time.
    taken: Option<Instant>,
    /// Something has changed since the last one.
    owed: bool,
    /// Since when one is made.
    begun: Option<Watch>,
}

impl Pace {
    /// Something has changed: whether a document is made of it now. Then [`Self::done`] follows; else it is [`Self::due`] later.
    pub fn may(&mut self) -> bool {
        let may = self.next().is_none_or(|then| then <= Instant::now());
        self.owed = !may;
        self.begun = may.then(Watch::now);
        may
    }

    /// The document is made.
    pub fn done(&mut self) {
        let begun = self.begun.take();
        self.took(begun.map_or(Duration::ZERO, |begun| begun.elapsed()));
    }

    fn took(&mut self, took: Duration) {
        let now = Instant::now();
        self.taken = Some(self.taken.map_or(now, |then| then.max(now)) + took.min(MOST) * PARTS);
    }

    /// When one is owed.
    pub fn due(&self) -> Option<Instant> {
        self.next().filter(|_| self.owed)
    }

    fn next(&self) -> Option<Instant> {
        self.taken?.checked_sub(AHEAD)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn what_costs_little_is_told_at_once() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            assert!(pace.may());
            pace.took(Duration::from_micros(400));
        }
        assert_eq!(pace.due(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn what_costs_much_takes_a_tenth_of_the_time() {
        let (mut pace, begun) = (Pace::default(), Instant::now());
        let cost = Duration::from_millis(30);
        let mut told = 0;
        while begun.elapsed() < Duration::from_secs(30) {
            if pace.may() {
                pace.took(cost);
                told += 1;
            } else {
                tokio::time::sleep_until(pace.due().unwrap()).await;
            }
        }
        assert!((100..=105).contains(&told), "{told}");
    }
}
