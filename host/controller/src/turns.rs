//! Decides which write goes next, so that no namespace waits for another one. Does no I/O.
//!
//! Namespaces take turns: the one that was served longest ago is next. Within a namespace objects follow each other in their order, and begin
//! again after the last one. A namespace whose writes take long shares a few places with others of its kind, and takes none of the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::time::Duration;

use leafhost_core::timeouts::BACKOFF_LAST;
use tokio::time::Instant;

/// How long a namespace is remembered that wants nothing: longer than what failed waits for its next attempt.
const REMEMBERED: Duration = BACKOFF_LAST.saturating_mul(2);

/// Bounds how many writes run at once.
#[derive(Debug, Clone, Copy)]
pub struct Places {
    /// Those of all namespaces whose writes are quick.
    pub all: usize,
    /// Those of one namespace among them.
    pub of_one: usize,
    /// Those of all namespaces whose writes take long, beside the others.
    pub slow: usize,
}

/// Names what waits, by namespace.
pub type Waiting<K, V> = BTreeMap<String, BTreeMap<K, V>>;

/// Remembers who was served when, and what runs.
#[derive(Debug)]
pub struct Turns<K> {
    places: Places,
    count: u64,
    namespaces: BTreeMap<String, Namespace<K>>,
}

#[derive(Debug)]
struct Namespace<K> {
    /// Counts up with each turn of any namespace.
    turn: u64,
    used: Instant,
    last: K,
    running: BTreeSet<K>,
    /// Tells that its last write took long.
    is_slow: bool,
}

impl<K: Ord + Clone> Turns<K> {
    /// Returns one in which nobody was served yet.
    pub fn new(places: Places) -> Self {
        Self {
            places,
            count: 0,
            namespaces: BTreeMap::new(),
        }
    }

    /// Gives a place to the next of those that wait, if there is one for it. Nothing that runs may be among them.
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
            Some(one) if one.is_slow => slow < self.places.slow,
            Some(one) => quick < self.places.all && one.running.len() < self.places.of_one,
            None => quick < self.places.all,
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

    /// Takes back a place. `is_slow` tells whether it was taken for long.
    pub fn done(&mut self, namespace: &str, key: &K, is_slow: bool, now: Instant) {
        if let Some(one) = self.namespaces.get_mut(namespace) {
            one.running.remove(key);
            one.is_slow = is_slow;
            one.used = now;
        }
    }

    /// Tells whether an object is being written.
    pub fn is_running(&self, namespace: &str, key: &K) -> bool {
        let one = self.namespaces.get(namespace);
        one.is_some_and(|one| one.running.contains(key))
    }

    /// Forgets namespaces that have wanted nothing for long.
    pub fn forget(&mut self, now: Instant) {
        self.namespaces
            .retain(|_, one| !one.running.is_empty() || one.used + REMEMBERED > now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: Places = Places {
        all: 4,
        of_one: 2,
        slow: 1,
    };

    /// Gives places until there are none, and takes what got one out of those that wait.
    fn begun(turns: &mut Turns<u32>, waiting: &mut Waiting<u32, ()>) -> Vec<String> {
        let mut begun = Vec::new();
        while let Some((name, key)) = turns.next(waiting, Instant::now()) {
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
        let mut turns = Turns::new(PLACES);
        let mut queue = waiting(&[("a", &[1, 2, 3, 4, 5, 6]), ("b", &[1]), ("z", &[1, 2, 3])]);
        // Ends a write, quick or slow, and names what begins then.
        let table: [(&str, u32, bool, &[&str]); 7] = [
            ("b", 1, false, &["z2"]),
            ("a", 1, false, &["a3"]),
            // It was quick, and the one that was served longest ago is next.
            ("z", 1, false, &["z3"]),
            // Its other write runs in the only place for slow ones; nobody else wants its place.
            ("a", 2, true, &[]),
            ("a", 3, true, &["a4"]),
            ("z", 2, false, &[]),
            // It is quick again.
            ("a", 4, false, &["a5", "a6"]),
        ];
        assert_eq!(begun(&mut turns, &mut queue), ["a1", "b1", "z1", "a2"]);
        for (name, key, is_slow, expected) in table {
            turns.done(name, &key, is_slow, Instant::now());
            assert_eq!(begun(&mut turns, &mut queue), expected, "{name}{key}");
        }
        // What is planned anew goes on where it was, and who was never served is first.
        for (name, key) in [("a", 5), ("z", 3)] {
            turns.done(name, &key, false, Instant::now());
        }
        let mut queue = waiting(&[("a", &[1, 2, 7, 8]), ("c", &[9]), ("z", &[4])]);
        assert_eq!(begun(&mut turns, &mut queue), ["c9", "z4", "a7"]);
        assert!(turns.is_running("a", &6) && !turns.is_running("a", &5));
        turns.done("a", &6, false, Instant::now());
        assert_eq!(begun(&mut turns, &mut queue), ["a8"]);
        turns.done("a", &7, false, Instant::now());
        assert_eq!(begun(&mut turns, &mut queue), ["a1"]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_namespace_that_wants_nothing_is_forgotten_once_nothing_of_it_runs() {
        let mut turns = Turns::new(PLACES);
        let mut queue = waiting(&[("a", &[1]), ("b", &[1])]);
        assert_eq!(begun(&mut turns, &mut queue), ["a1", "b1"]);
        turns.done("a", &1, true, Instant::now());
        turns.forget(Instant::now());
        assert_eq!(turns.namespaces.len(), 2);
        tokio::time::advance(REMEMBERED).await;
        turns.forget(Instant::now());
        assert_eq!(turns.namespaces.keys().collect::<Vec<_>>(), ["b"]);
    }
}
