//! Resource limits of a call, and the limiter that wasmtime consults for memory, tables and instances.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use leafhost_grants::Limits;
use wasmtime::{ResourceLimiter, Result};

use crate::timeouts::{LOADING_CPU, LOADING_WALL};

/// Maximum number of core instances per component.
pub(crate) const GUEST_INSTANCES: u8 = 64;
/// Maximum number of linear memories per component.
pub(crate) const MEMORIES: u8 = 8;
/// Maximum number of tables per component.
pub(crate) const TABLES: u8 = 16;
/// Maximum number of elements per table.
pub(crate) const TABLE_ELEMENTS: usize = 100_000;

/// Returns the limits of a call that is made while a handler is loaded. Few handlers are loaded at a time, so one whose grants allow long
/// calls must not keep others from being loaded.
pub(crate) fn while_loading(limits: &Limits) -> Limits {
    Limits {
        cpu: limits.cpu.min(LOADING_CPU),
        wall: limits.wall.min(LOADING_WALL),
        ..limits.clone()
    }
}

/// Bytes that a guest may make the host hold for it in one call or answer.
pub(crate) const HOSTCALL_FUEL: usize = 32 << 20;
/// Maximum number of handles that a guest may hold.
pub(crate) const HANDLES: usize = 4096;

/// Memory use of a call; outlives the store.
#[derive(Debug, Default)]
pub(crate) struct MemoryUse {
    peak: AtomicU64,
    refused: AtomicBool,
    tables_refused: AtomicBool,
}

impl MemoryUse {
    /// Returns the peak of linear memory and of memory that the host held for the guest, in bytes.
    pub(crate) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Returns true if the guest asked for more memory than it may have.
    pub(crate) fn refused(&self) -> bool {
        self.refused.load(Ordering::Relaxed)
    }

    /// Returns true if the guest asked for a larger table than it may have.
    pub(crate) fn tables_refused(&self) -> bool {
        self.tables_refused.load(Ordering::Relaxed)
    }
}

/// Admits or refuses growth.
#[derive(Debug)]
pub(crate) struct Limiter {
    limit: u64,
    memory: u64,
    /// Bytes that the host holds for the guest.
    held: u64,
    uses: Arc<MemoryUse>,
}

impl Limiter {
    /// Creates a limiter that admits at most `limit` bytes.
    pub(crate) fn new(limit: u64, uses: Arc<MemoryUse>) -> Self {
        Self {
            limit,
            memory: 0,
            held: 0,
            uses,
        }
    }

    /// Sets the bytes that the host holds for the guest; returns true if they fit.
    pub(crate) fn hold(&mut self, held: u64) -> bool {
        self.held = held;
        self.fits(self.memory)
    }

    /// Returns true if `memory` bytes of linear memory fit together with the bytes that the host holds.
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
