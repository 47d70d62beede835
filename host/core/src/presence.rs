//! What is known of something by its key: absence is never read from a missing entry alone.

use std::collections::BTreeSet;

/// How something stands on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Presence<T> {
    /// It is there, or its grace runs.
    Seen(T),
    /// Nothing is known of it: it is neither used nor withdrawn.
    Unknown,
    /// It is known not to be there.
    Gone,
}

impl<T> Presence<T> {
    /// Whether it may be withdrawn.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone)
    }
}

/// What is known of all that is not listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Absent<K> {
    /// Nothing, but for these, which are gone.
    Unknown {
        /// What is gone all the same.
        gone: BTreeSet<K>,
    },
    /// It is gone, but for these, of which nothing is known.
    Gone {
        /// What is not gone.
        unknown: BTreeSet<K>,
    },
}

impl<K> Default for Absent<K> {
    fn default() -> Self {
        Self::UNKNOWN
    }
}

impl<K> Absent<K> {
    /// Nothing is known of what is not listed.
    pub const UNKNOWN: Self = Self::Unknown {
        gone: BTreeSet::new(),
    };
    /// What is not listed is gone.
    pub const GONE: Self = Self::Gone {
        unknown: BTreeSet::new(),
    };

    /// Whether what is not listed is gone, as a rule.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Gone { .. })
    }
}

impl<K: Ord> Absent<K> {
    /// How `key` stands, which is not listed.
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
