//! What one call may use, and the part of it that wasmtime asks about: memory, tables, guest instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leafhost_grants::Limits;
use wasmtime::{ResourceLimiter, Result};

use crate::timeouts::{LOADING_CPU, LOADING_WALL};

/// The most guest instances of one component.
pub(crate) const GUEST_INSTANCES: u8 = 64;
/// The most linear memories of one component.
pub(crate) const MEMORIES: u8 = 8;
/// The most tables of one component.
pub(crate) const TABLES: u8 = 16;
/// The most elements of a table.
pub(crate) const TABLE_ELEMENTS: usize = 100_000;

/// For a call that is made while a handler is loaded: only so much is loaded at a time, so that a handler whose grants let it take long
/// must not keep others from being loaded.
pub(crate) fn while_loading(limits: &Limits) -> Limits {
    Limits {
        cpu: limits.cpu.min(LOADING_CPU),
        wall: limits.wall.min(LOADING_WALL),
        ..limits.clone()
    }
}

/// Bytes a guest may make the host hold for it while it calls or answers.
pub(crate) const HOSTCALL_FUEL: usize = 32 << 20;
/// Handles a guest may hold.
pub(crate) const HANDLES: usize = 4096;

/// What a call's memory came to; outlives the store.
#[derive(Debug, Default)]
pub(crate) struct MemoryUse {
    peak: AtomicU64,
    refused: AtomicBool,
    tables_refused: AtomicBool,
}

impl MemoryUse {
    /// Bytes of linear memory, and of what the host kept for the guest, at their most.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Whether the guest asked for more than it may have.
    pub(crate) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Whether the guest asked for a larger table than it may have.
    pub(crate) fn tables_refused(&self) -> bool {
        self.tables_refused.load(Ordering::Relaxed)
    }
}

/// Says yes or no to growth.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: u64,
    memory: u64,
    /// What the host keeps for the guest.
    held: u64,
    uses: Arc<MemoryUse>,
}

impl Limiter {
    /// At most `limit` bytes.
    pub(crate) fn new(limit: u64, uses: Arc<MemoryUse>) -> Self {
        Self {
            limit,
            memory: 0,
            held: 0,
            uses,
        }
    }

    /// Takes note of what the host keeps for the guest; whether there is room for it.
    pub(crate) fn hold(&mut self, held: u64) -> bool {
        self.held = held;
        self.fits(self.memory)
    }

    /// Whether so much linear memory fits with what the host keeps.
    fn fits(&self, memory: u64) -> bool {
        let total = memory.saturating_add(self.held);
        if total > self.limit {
            self.uses.refused.store(true, Ordering::Relaxed);
            return false;
        }
        self.uses.peak.fetch_max(total, Ordering::Relaxed);
        true
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool> {
        let more = u64::try_from(desired.saturating_sub(current)).unwrap_or(u64::MAX);
        let total = self.memory.saturating_add(more);
        if !self.fits(total) {
            return Ok(false);
        }
        self.memory = total;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> Result<bool> {
        let fits = desired <= TABLE_ELEMENTS;
        self.uses.tables_refused.fetch_or(!fits, Ordering::Relaxed);
        Ok(fits)
    }

    fn instances(&self) -> usize {
        GUEST_INSTANCES.into()
    }

    fn tables(&self) -> usize {
        TABLES.into()
    }

    fn memories(&self) -> usize {
        MEMORIES.into()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn all_memories_count_together() {
        let uses = Arc::new(MemoryUse::default());
        let mut limiter = Limiter::new(100, uses.clone());
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(!limiter.memory_growing(0, 60, None).unwrap());
        assert!(uses.refused());
        assert!(limiter.memory_growing(0, 40, None).unwrap());
        assert_eq!(uses.peak(), 100);
    }

    #[test]
    fn what_the_host_keeps_counts_with_the_memories() {
        let uses = Arc::new(MemoryUse::default());
        let mut limiter = Limiter::new(100, uses.clone());
        assert!(limiter.memory_growing(0, 60, None).unwrap());
        assert!(limiter.hold(40));
        assert_eq!((uses.peak(), uses.refused()), (100, false));
        assert!(!limiter.memory_growing(60, 61, None).unwrap());
        assert!(limiter.hold(10));
        assert!(limiter.memory_growing(60, 90, None).unwrap());
        assert!(!limiter.hold(11));
        assert_eq!((uses.peak(), uses.refused()), (100, true));
    }

    #[test]
    fn what_is_asked_while_loading_has_a_moment_whatever_the_grants_say() {
        let granted = Limits {
            cpu: Duration::from_mins(1),
            wall: Duration::from_mins(10),
            memory: 1 << 30,
            ..Limits::default()
        };
        let loading = while_loading(&granted);
        assert_eq!(
            (loading.cpu, loading.wall, loading.memory),
            (Duration::from_secs(1), Duration::from_secs(5), 1 << 30)
        );
        let less = Limits {
            cpu: Duration::from_millis(1),
            wall: Duration::from_millis(2),
            ..granted
        };
        assert_eq!(while_loading(&less), less);
    }

    #[test]
    fn tables_are_bounded() {
        let mut limiter = Limiter::new(100, Arc::default());
        assert!(limiter.table_growing(0, 100_000, None).unwrap());
        assert!(!limiter.table_growing(100_000, 100_001, None).unwrap());
    }
}
