//! Randomness that a seed brings back, and how long a soak lasts: `SOAK_SEED`, `SOAK_ROUNDS`.

use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;

/// A sequence that a seed brings back (xorshift64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// The one of that seed, which is printed.
    pub fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(seed | 1)
    }

    /// Another sequence, that follows from this one.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.below(u64::MAX) | 1)
    }

    /// The next number, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(limit).unwrap_or_default()
    }

    /// One of these.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let index = self.below(u64::try_from(from.len()).unwrap_or(u64::MAX));
        from.get(usize::try_from(index).ok()?)
    }

    /// Lets a random time pass, of so many milliseconds at most: what is done next falls anywhere into what goes on.
    pub fn moment(&mut self, most: u64) {
        let end = Instant::now() + Duration::from_millis(self.below(most));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

/// How often a soak does what it does: `SOAK_ROUNDS`, or `default`.
pub fn rounds<N: FromStr>(default: N) -> N {
    number("SOAK_ROUNDS").unwrap_or(default)
}

/// What a soak begins with: `SOAK_SEED`, or another one each time.
pub fn seed() -> Result<u64> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(number("SOAK_SEED").unwrap_or_else(|| clock.subsec_nanos().into()))
}

fn number<N: FromStr>(name: &str) -> Option<N> {
    std::env::var(name).ok()?.parse().ok()
}
