//! List of waiting tasks and the events they wait for.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// Waiting tasks in order: timers by their end, others in the order in which they began to wait.
#[derive(Debug)]
pub(crate) struct WaitList<O, V> {
    /// Entries sorted by key. A sorted list of a few hundred entries is as fast as a tree, and a tree would be the largest
    /// part of this code in a component.
    entries: RefCell<Vec<Entry<O, V>>>,
    begun: Cell<u64>,
}

#[derive(Debug)]
struct Entry<O, V> {
    key: (O, u64),
    value: V,
    waker: Waker,
}

impl<O, V> Default for WaitList<O, V> {
    fn default() -> Self {
        Self {
            entries: RefCell::default(),
            begun: Cell::default(),
        }
    }
}

impl<O: Ord + Copy, V: Clone> WaitList<O, V> {
    /// Waits, from the first poll on, until the entry is completed by [`happened`](Self::happened).
    pub fn wait(&self, order: O, value: V) -> Wait<'_, O, V> {
        Wait {
            waiting: self,
            order,
            value: Some(value),
            key: None,
        }
    }

    /// Returns the key of the first entry.
    pub fn first(&self) -> Option<(O, u64)> {
        self.entries.borrow().first().map(|entry| entry.key)
    }

    /// Returns all entries in order.
    pub fn all(&self) -> Vec<((O, u64), V)> {
        let entries = self.entries.borrow();
        let all = entries.iter().map(|entry| (entry.key, entry.value.clone()));
        all.collect()
    }

    /// Completes an entry and wakes its task.
    pub fn happened(&self, key: (O, u64)) {
        if let Some(entry) = self.remove(key) {
            entry.waker.wake();
        }
    }

    fn remove(&self, key: (O, u64)) -> Option<Entry<O, V>> {
        let mut entries = self.entries.borrow_mut();
        let place = entries.binary_search_by(|entry| entry.key.cmp(&key)).ok()?;
        Some(entries.remove(place))
    }

    fn add(&self, order: O, value: V, waker: Waker) -> (O, u64) {
        let begun = self.begun.get();
        self.begun.set(begun.wrapping_add(1));
        let key = (order, begun);
        let mut entries = self.entries.borrow_mut();
        let place = entries.partition_point(|entry| entry.key < key);
        entries.insert(place, Entry { key, value, waker });
        key
    }

    /// Replaces the waker; returns false if the entry is gone.
    fn renew(&self, key: (O, u64), waker: &Waker) -> bool {
        let mut entries = self.entries.borrow_mut();
        let Ok(place) = entries.binary_search_by(|entry| entry.key.cmp(&key)) else {
            return false;
        };
        if let Some(entry) = entries.get_mut(place) {
            entry.waker.clone_from(waker);
        }
        true
    }
}

/// Future that waits for one entry; dropping it removes the entry.
#[derive(Debug)]
pub(crate) struct Wait<'a, O: Ord + Copy, V: Clone> {
    waiting: &'a WaitList<O, V>,
    order: O,
    value: Option<V>,
    key: Option<(O, u64)>,
}

impl<O: Ord + Copy + Unpin, V: Clone + Unpin> Future for Wait<'_, O, V> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        if let Some(value) = self.value.take() {
            let waker = context.waker().clone();
            self.key = Some(self.waiting.add(self.order, value, waker));
            return Poll::Pending;
        }
        match self.key {
            Some(key) if self.waiting.renew(key, context.waker()) => Poll::Pending,
            _ => Poll::Ready(()),
        }
    }
}

impl<O: Ord + Copy, V: Clone> Drop for Wait<'_, O, V> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.waiting.remove(key);
        }
    }
}
