//! Holds objects written by others, and bounds the number and the size of those of each owner, whoever wrote them. Pure.

use std::collections::BTreeMap;

use leafhost_core::node_report::MAX_REPORTS;

/// Maximum size of a node's reports, in bytes.
const MAX_BYTES: usize = 4 << 20;

/// Objects by name, each of a node or another owner.
#[derive(Debug)]
pub struct BoundedStore<V> {
    held: BTreeMap<String, Entry<V>>,
    nodes: BTreeMap<String, Usage>,
    is_logged: bool,
}

#[derive(Debug)]
struct Entry<V> {
    node: String,
    bytes: usize,
    value: V,
}

/// Number and size of a node's objects.
#[derive(Debug, Default)]
struct Usage {
    number: usize,
    bytes: usize,
}

impl<V> Default for BoundedStore<V> {
    fn default() -> Self {
        Self {
            held: BTreeMap::new(),
            nodes: BTreeMap::new(),
            is_logged: false,
        }
    }
}

impl<V> BoundedStore<V> {
    /// Replaces the earlier version of a report. If its node has too many reports or too many bytes, removes the
    /// earlier version and returns the report as an error.
    pub fn put(&mut self, name: &str, node: &str, bytes: usize, value: V) -> Result<(), V> {
        self.remove(name);
        let usage = self.nodes.entry(node.to_owned()).or_default();
        let after = usage.bytes.saturating_add(bytes);
        if usage.number >= MAX_REPORTS || after > MAX_BYTES {
            return Err(value);
        }
        *usage = Usage {
            number: usage.number.saturating_add(1),
            bytes: after,
        };
        let node = node.to_owned();
        self.held
            .insert(name.to_owned(), Entry { node, bytes, value });
        Ok(())
    }

    /// Returns true only on the first call, to log left-out reports once.
    pub fn is_first_rejection(&mut self) -> bool {
        !std::mem::replace(&mut self.is_logged, true)
    }

    /// Removes a report.
    pub fn remove(&mut self, name: &str) {
        let Some(held) = self.held.remove(name) else {
            return;
        };
        if let Some(usage) = self.nodes.get_mut(&held.node) {
            usage.number = usage.number.saturating_sub(1);
            usage.bytes = usage.bytes.saturating_sub(held.bytes);
            if usage.number == 0 {
                self.nodes.remove(&held.node);
            }
        }
    }

    /// Returns the report of this name.
    pub fn get(&self, name: &str) -> Option<&V> {
        self.held.get(name).map(|held| &held.value)
    }

    /// Returns all names.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.held.keys()
    }

    /// Returns all reports.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.held.values().map(|held| &held.value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_has_so_many_reports_and_bytes_and_takes_none_of_anothers() {
        let mut store = BoundedStore::default();
        for number in 0..MAX_REPORTS + 20 {
            let is_held = store.put(&format!("a.{number}"), "a", 10, number).is_ok();
            assert_eq!(is_held, number < MAX_REPORTS);
        }
        assert_eq!(store.put("b.0", "b", MAX_BYTES, 0), Ok(()));
        assert_eq!(store.put("b.1", "b", 1, 1), Err(1));
        // A later version of a report replaces the earlier one.
        assert_eq!(store.put("b.0", "b", MAX_BYTES / 2, 2), Ok(()));
        assert_eq!(store.put("b.1", "b", MAX_BYTES / 2, 1), Ok(()));
        assert_eq!(store.put("b.1", "b", MAX_BYTES, 1), Err(1));
        assert_eq!((store.get("b.0"), store.get("b.1")), (Some(&2), None));
        store.remove("a.0");
        assert_eq!(store.put("a.200", "a", 10, 200), Ok(()));
        assert_eq!(store.values().count(), MAX_REPORTS + 1);
    }
}
