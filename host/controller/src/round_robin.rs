//! Decides which write goes next, so that no namespace waits for another one. Does no I/O.
//!
//! Namespaces take turns: the one that was served longest ago is next. Within a namespace, objects follow in order of their keys and start
//! over after the last one. Namespaces whose writes take long share a few places of their own and take none of the others.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use leafhost_core::timeouts::BACKOFF_LAST;
use tokio::time::Instant;

/// Time that an idle namespace is remembered: longer than a failed write waits for its next attempt.
const REMEMBERED: Duration = BACKOFF_LAST.saturating_mul(2);

/// Upper bounds of concurrent writes.
#[derive(Debug, Clone, Copy)]
pub struct WriteLimits {
    /// Bound for all namespaces whose writes are quick.
    pub all: usize,
    /// Bound for one of these namespaces.
    pub of_one: usize,
    /// Bound for all namespaces whose writes take long, in addition to `all`.
    pub slow: usize,
}

/// Waiting objects by namespace.
pub type Waiting<K, V> = BTreeMap<String, BTreeMap<K, V>>;

/// Record of the order in which namespaces were served, and of the running writes.
#[derive(Debug)]
pub struct RoundRobin<K> {
    limits: WriteLimits,
    count: u64,
    namespaces: BTreeMap<String, Namespace<K>>,
}

#[derive(Debug)]
struct Namespace<K> {
    /// Number of the namespace's last turn, counted over all namespaces.
    turn: u64,
    used: Instant,
    last: K,
    running: BTreeSet<K>,
    /// True if its last write took long.
    is_slow: bool,
}

impl<K: Ord + Clone> RoundRobin<K> {
    /// Creates a record without any turn.
    pub fn new(limits: WriteLimits) -> Self {
        Self {
            limits,
            count: 0,
            namespaces: BTreeMap::new(),
        }
    }

    /// Gives a place to the next waiting object, if one is free for it. `waiting` must not contain a running object.
    pub fn next<V>(&mut self, waiting: &Waiting<K, V>, now: Instant) -> Option<(String, K)> {
        let running = |is_slow: bool| -> usize {
            let alike = self
                .namespaces
                .values()
                .filter(|one| one.is_slow == is_slow);
            alike.map(|one| one.running.len()).sum()
        };
        let (quick, slow) = (running(false), running(true));
        let has_place = |name: &str| match self.namespaces.get(name) {
            Some(one) if one.is_slow => slow < self.limits.slow,
            Some(one) => quick < self.limits.all && one.running.len() < self.limits.of_one,
            None => quick < self.limits.all,
        };
        let turn = |name: &str| self.namespaces.get(name).map_or(0, |one| one.turn);
        let (name, queue) = waiting
            .iter()
            .filter(|(name, queue)| !queue.is_empty() && has_place(name))
            .min_by_key(|(name, _)| turn(name))?;
        let after = self.namespaces.get(name).and_then(|one| {
            let mut after = queue.range((Bound::Excluded(&one.last), Bound::Unbounded));
            after.next()
        });
        let (key, _) = after.or_else(|| queue.first_key_value())?;
        self.count += 1;
        let one = self.namespaces.entry(name.clone()).or_insert(Namespace {
            turn: 0,
            used: now,
            last: key.clone(),
            running: BTreeSet::new(),
            is_slow: false,
        });
        one.turn = self.count;
        one.used = now;
        one.last = key.clone();
        one.running.insert(key.clone());
        Some((name.clone(), key.clone()))
    }

    /// Frees the place of a write that has ended. `is_slow` is true if the write held it for long.
    pub fn done(&mut self, namespace: &str, key: &K, is_slow: bool, now: Instant) {
        if let Some(one) = self.namespaces.get_mut(namespace) {
            one.running.remove(key);
            one.is_slow = is_slow;
            one.used = now;
        }
    }

    /// Returns true if the object is being written.
    pub fn is_running(&self, namespace: &str, key: &K) -> bool {
        let one = self.namespaces.get(namespace);
        one.is_some_and(|one| one.running.contains(key))
    }

    /// Forgets namespaces that have been idle for [`REMEMBERED`].
    pub fn forget(&mut self, now: Instant) {
        self.namespaces
            .retain(|_, one| !one.running.is_empty() || one.used + REMEMBERED > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: WriteLimits = WriteLimits {
        all: 4,
        of_one: 2,
        slow: 1,
    };

    /// Gives out places until none is free, and removes the objects that got one from `waiting`.
    fn begun(round_robin: &mut RoundRobin<u32>, waiting: &mut Waiting<u32, ()>) -> Vec<String> {
        let mut begun = Vec::new();
        while let Some((name, key)) = round_robin.next(waiting, Instant::now()) {
            waiting.get_mut(&name).unwrap().remove(&key);
            begun.push(format!("{name}{key}"));
        }
        begun
    }

    fn waiting(all: &[(&str, &[u32])]) -> Waiting<u32, ()> {
        let queue = |keys: &[u32]| keys.iter().map(|key| (*key, ())).collect();
        all.iter()
            .map(|(name, keys)| ((*name).to_owned(), queue(keys)))
            .collect()
    }

    #[tokio::test(start_paused = true)]
    async fn namespaces_take_turns_and_one_that_is_slow_takes_no_place_of_the_others() {
        let mut round_robin = RoundRobin::new(PLACES);
        let mut queue = waiting(&[("a", &[1, 2, 3, 4, 5, 6]), ("b", &[1]), ("z", &[1, 2, 3])]);
        // Write that ends, whether it was slow, and the writes that begin then.
        let table: [(&str, u32, bool, &[&str]); 7] = [
            ("b", 1, false, &["z2"]),
            ("a", 1, false, &["a3"]),
            // The write was quick, and the namespace served longest ago is next.
            ("z", 1, false, &["z3"]),
            // The other write of the namespace runs in the only slow place, and no other namespace waits for the freed place.
            ("a", 2, true, &[]),
            ("a", 3, true, &["a4"]),
            ("z", 2, false, &[]),
            // The namespace is quick again.
            ("a", 4, false, &["a5", "a6"]),
        ];
        assert_eq!(
            begun(&mut round_robin, &mut queue),
            ["a1", "b1", "z1", "a2"]
        );
        for (name, key, is_slow, expected) in table {
            round_robin.done(name, &key, is_slow, Instant::now());
            assert_eq!(begun(&mut round_robin, &mut queue), expected, "{name}{key}");
        }
        // A new plan continues the order, and a namespace that was never served is first.
        for (name, key) in [("a", 5), ("z", 3)] {
            round_robin.done(name, &key, false, Instant::now());
        }
        let mut queue = waiting(&[("a", &[1, 2, 7, 8]), ("c", &[9]), ("z", &[4])]);
        assert_eq!(begun(&mut round_robin, &mut queue), ["c9", "z4", "a7"]);
        assert!(round_robin.is_running("a", &6) && !round_robin.is_running("a", &5));
        round_robin.done("a", &6, false, Instant::now());
        assert_eq!(begun(&mut round_robin, &mut queue), ["a8"]);
        round_robin.done("a", &7, false, Instant::now());
        assert_eq!(begun(&mut round_robin, &mut queue), ["a1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_wants_nothing_is_forgotten_once_nothing_of_it_runs() {
        let mut round_robin = RoundRobin::new(PLACES);
        let mut queue = waiting(&[("a", &[1]), ("b", &[1])]);
        assert_eq!(begun(&mut round_robin, &mut queue), ["a1", "b1"]);
        round_robin.done("a", &1, true, Instant::now());
        round_robin.forget(Instant::now());
        assert_eq!(round_robin.namespaces.len(), 2);
        tokio::time::advance(REMEMBERED).await;
        round_robin.forget(Instant::now());
        assert_eq!(round_robin.namespaces.keys().collect::<Vec<_>>(), ["b"]);
    }
}
