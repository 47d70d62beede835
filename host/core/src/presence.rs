//! Presence of something identified by a key. A missing entry alone never means absence.

use std::collections::BTreeSet;

/// Presence of something on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence<T> {
    /// Present, or in its grace period.
    Seen(T),
    /// Unknown: must be neither used nor withdrawn.
    Unknown,
    /// Known to be absent.
    Gone,
}

impl<T> Presence<T> {
    /// Returns true if it is known to be absent and may be withdrawn.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }
}

/// State of all keys that are not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent<K> {
    /// Unknown by default.
    Unknown {
        /// Keys that are gone nevertheless.
        gone: BTreeSet<K>,
    },
    /// Gone by default.
    Gone {
        /// Keys whose state is unknown.
        unknown: BTreeSet<K>,
    },
}

impl<K> Default for Absent<K> {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl<K> Absent<K> {
    /// Every key that is not listed is unknown.
    pub const UNKNOWN: Self = Self::Unknown {
        gone: BTreeSet::new(),
    };
    /// Every key that is not listed is gone.
    pub const GONE: Self = Self::Gone {
        unknown: BTreeSet::new(),
    };

    /// Returns true if keys that are not listed are gone by default.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}

impl<K: Ord> Absent<K> {
    /// Returns the presence of `key`, which must not be listed.
    pub fn presence<T>(&self, key: &K) -> Presence<T> {
        let is_gone = match self {
            Self::Unknown { gone } => gone.contains(key),
            Self::Gone { unknown } => !unknown.contains(key),
        };
        if is_gone {
            Presence::Gone
        } else {
            Presence::Unknown
        }
    }
}
