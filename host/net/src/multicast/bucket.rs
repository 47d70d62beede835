//! A token bucket that bounds the datagrams read. The caller passes in the time.

use std::time::Duration;

use tokio::time::Instant;

/// Number of datagrams read at once after a quiet time.
const BURST: u32 = 256;
/// Time to earn one token: 2,000 datagrams per second.
const EARN: Duration = Duration::from_micros(500);
/// Number of tokens to wait for once the bucket is empty: waking for each datagram would cost more than reading it.
const REST: u32 = 64;

/// A token bucket, full at first.
#[derive(Debug)]
pub(super) struct Bucket {
    tokens: u32,
    /// `Instant` at which the last token was earned.
    earned: Instant,
}

impl Bucket {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            tokens: BURST,
            earned: now,
        }
    }

    /// Takes a token, or returns the `Instant` at which there will be some.
    pub(super) fn take(&mut self, now: Instant) -> Result<(), Instant> {
        let since = now.saturating_duration_since(self.earned);
        let earned = u32::try_from(since.as_micros() / EARN.as_micros()).unwrap_or(u32::MAX);
        if self.tokens.saturating_add(earned) >= BURST {
            self.tokens = BURST;
            self.earned = now;
        } else {
            self.tokens += earned;
            self.earned += EARN * earned;
        }
        match self.tokens.checked_sub(1) {
            Some(left) => {
                self.tokens = left;
                Ok(())
            }
            None => Err(self.earned + EARN * REST),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_is_read_at_its_rate_and_a_quiet_time_is_paid_back_once() {
        let start = Instant::now();
        let mut bucket = Bucket::new(start);
        let mut read = 0;
        let mut now = start;
        while now < start + Duration::from_secs(10) {
            match bucket.take(now) {
                Ok(()) => read += 1,
                Err(later) => {
                    assert!(later > now, "{later:?} {now:?}");
                    now = later;
                }
            }
        }
        assert!((20_000 - REST..=20_000 + BURST).contains(&read), "{read}");

        now += Duration::from_hours(1);
        let mut burst = 0;
        while bucket.take(now).is_ok() {
            burst += 1;
        }
        assert_eq!(burst, BURST);
    }
}
