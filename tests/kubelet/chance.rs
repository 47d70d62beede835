//! Random choices that a seed brings back, and how often a soak goes round.

use std::time::UNIX_EPOCH;

use anyhow::Result;

/// A sequence (xorshift64).
pub struct Chance(u64);

impl Chance {
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    pub fn one_of<'a, T>(&mut self, all: &'a [T]) -> Option<&'a T> {
        let count = u64::try_from(all.len()).ok().filter(|count| *count > 0)?;
        all.get(usize::try_from(self.below(count)).ok()?)
    }
}

fn number<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// `SOAK_ROUNDS`, or the default.
pub fn rounds(default: usize) -> usize {
    number("SOAK_ROUNDS").unwrap_or(default)
}

/// `SOAK_SEED`, or another each time.
pub fn seed() -> Result<u64> {
    let clock = std::time::SystemTime::now().duration_since(UNIX_EPOCH)?;
    Ok(number("SOAK_SEED").unwrap_or_else(|| u64::from(clock.subsec_nanos())))
}
