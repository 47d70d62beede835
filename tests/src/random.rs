//! Reproducible random numbers, and the length of soak tests: `SOAK_SEED`, `SOAK_ROUNDS`.

use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::Result;

/// A reproducible random sequence (xorshift64).
#[derive(Debug)]
pub struct Random(u64);

impl Random {
    /// Starts the sequence of a seed and prints the seed.
    pub fn new(seed: u64) -> Self {
        println!("seed {seed}");
        Self(seed | 1)
    }

    /// Returns another sequence derived from this one.
    #[must_use]
    pub fn split(&mut self) -> Self {
        Self(self.below(u64::MAX) | 1)
    }

    /// Returns the next number, below `limit`.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.checked_rem(limit).unwrap_or_default()
    }

    /// Returns a random element.
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> Option<&'a T> {
        let index = self.below(u64::try_from(from.len()).unwrap_or(u64::MAX));
        from.get(usize::try_from(index).ok()?)
    }

    /// Spins for a random time of at most `most` milliseconds.
    pub fn moment(&mut self, most: u64) {
        let end = Instant::now() + Duration::from_millis(self.below(most));
        while Instant::now() < end {
            std::hint::spin_loop();
        }
    }
}

/// Returns the number of rounds: `SOAK_ROUNDS`, or `default`.
pub fn rounds<N: FromStr>(default: N) -> N {
    number("SOAK_ROUNDS").unwrap_or(default)
}

/// Returns the seed: `SOAK_SEED`, or a new one each time.
pub fn seed() -> Result<u64> {
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(number("SOAK_SEED").unwrap_or_else(|| clock.subsec_nanos().into()))
}

fn number<N: FromStr>(name: &str) -> Option<N> {
    std::env::var(name).ok()?.parse().ok()
}
